import { Layout } from "../components/Layout";
import { Message } from "../components/Message";

export function ComparePage() {
  return (
    <Layout crumbs={[{ label: "Compare" }]}>
      <Message kind="loading">Loading…</Message>
    </Layout>
  );
}

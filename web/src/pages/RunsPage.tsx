import { Layout } from "../components/Layout";
import { Message } from "../components/Message";

export function RunsPage() {
  return (
    <Layout crumbs={[{ label: "Runs" }]}>
      <Message kind="loading">Loading…</Message>
    </Layout>
  );
}

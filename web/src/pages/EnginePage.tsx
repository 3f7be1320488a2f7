import { Layout } from "../components/Layout";
import { Message } from "../components/Message";

export function EnginePage(_: { run: string }) {
  return (
    <Layout crumbs={[{ label: "Engine" }]}>
      <Message kind="loading">Loading…</Message>
    </Layout>
  );
}

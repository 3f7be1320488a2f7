import { Layout } from "../components/Layout";
import { Message } from "../components/Message";

export function RunPage(_: { run: string }) {
  return (
    <Layout crumbs={[{ label: "Run" }]}>
      <Message kind="loading">Loading…</Message>
    </Layout>
  );
}

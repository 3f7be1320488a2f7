import { Layout } from "../components/Layout";
import { Message } from "../components/Message";

export function ServersPage(_: { id?: string | undefined }) {
  return (
    <Layout crumbs={[{ label: "Agent servers" }]}>
      <Message kind="loading">Loading…</Message>
    </Layout>
  );
}

import { Layout } from "../components/Layout";
import { Message } from "../components/Message";

export function PoolsPage(_: { id?: string | undefined }) {
  return (
    <Layout crumbs={[{ label: "Pools" }]}>
      <Message kind="loading">Loading…</Message>
    </Layout>
  );
}

import { Layout } from "../components/Layout";
import { Message } from "../components/Message";

export function SearchPage(_: { run: string }) {
  return (
    <Layout crumbs={[{ label: "Search" }]}>
      <Message kind="loading">Loading…</Message>
    </Layout>
  );
}

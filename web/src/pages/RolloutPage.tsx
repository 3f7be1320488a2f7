import { Layout } from "../components/Layout";
import { Message } from "../components/Message";

export function RolloutPage(_: { run: string; task: string; attempt: number }) {
  return (
    <Layout crumbs={[{ label: "Rollout" }]}>
      <Message kind="loading">Loading…</Message>
    </Layout>
  );
}

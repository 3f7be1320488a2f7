import type { ComponentChildren } from "preact";
import { Layout } from "./components/Layout";
import { Message } from "./components/Message";
import { ComparePage } from "./pages/ComparePage";
import { EnginePage } from "./pages/EnginePage";
import { PoolsPage } from "./pages/PoolsPage";
import { RolloutPage } from "./pages/RolloutPage";
import { RunPage } from "./pages/RunPage";
import { RunsPage } from "./pages/RunsPage";
import { SearchPage } from "./pages/SearchPage";
import { ServersPage } from "./pages/ServersPage";
import { href, type Route, useRoute } from "./router";
import { useScrollToTop } from "./scrolling";

export function App() {
  const route = useRoute();
  useScrollToTop(route.path.join("/"));
  return <>{page(route)}</>;
}

function page({ path }: Route): ComponentChildren {
  const [first, name, part, task, attempt] = path;
  if (first === undefined) return <RunsPage />;
  if (first === "compare") return <ComparePage />;
  if (first === "pools") return <PoolsPage id={name} />;
  if (first === "servers") return <ServersPage id={name} />;
  if (first === "run" && name !== undefined) {
    if (part === undefined) return <RunPage key={name} run={name} />;
    if (part === "search") return <SearchPage key={name} run={name} />;
    if (part === "engine") return <EnginePage key={name} run={name} />;
    if (part === "rollout" && task !== undefined) {
      return <RolloutPage run={name} task={task} attempt={Number(attempt ?? 1)} />;
    }
  }
  return (
    <Layout crumbs={[{ label: "Not found" }]}>
      <Message kind="error">
        There is no such page. <a href={href([])}>All runs</a>
      </Message>
    </Layout>
  );
}

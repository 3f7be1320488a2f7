import { useMemo } from "preact/hooks";
import type { AgentServerDetail, AgentServerList, AgentServerRow, ServedAgent } from "../api";
import { Count } from "../components/Count";
import { type DataColumn, DataTable } from "../components/DataTable";
import { Figures } from "../components/Figures";
import { Layout } from "../components/Layout";
import { Message } from "../components/Message";
import { counted, formatAge, formatBytes, formatDuration, formatNumber, UNKNOWN } from "../format";
import { usePolledData } from "../polling";
import { sortRows } from "../resources";
import { href, setParams, useRoute } from "../router";
import { parseSort, sortText } from "../sorting";
import { cleanText } from "../text";
import "./resources.css";

const POLL_SECONDS = 2;

/** All agent servers, or one of them with its agents. */
export function ServersPage({ id }: { id?: string | undefined }) {
  return id === undefined ? <Servers /> : <Server key={id} id={id} />;
}

function Servers() {
  const { data, error } = usePolledData<AgentServerList>(["servers"], POLL_SECONDS);
  return (
    <Layout crumbs={[{ label: "Agent servers" }]}>
      <h1 class="visually-hidden">Agent servers</h1>
      {error && <Message kind="error">{error}</Message>}
      {!error && !data && <Message kind="loading">Asking the agent servers…</Message>}
      {data?.servers.length === 0 && <NoServers />}
      {data !== undefined && data.servers.length > 0 && (
        <section class="panel resource-page">
          <DataTable
            label="Agent servers"
            columns={SERVER_COLUMNS}
            rows={data.servers}
            rowKey={(server) => server.id}
            rowHref={(server) => href(["servers", server.id])}
            rowHeight={38}
          />
        </section>
      )}
    </Layout>
  );
}

function known(column: Omit<DataColumn<AgentServerRow>, "cell">, text: (server: AgentServerRow) => string) {
  return { ...column, numeric: true, cell: (server: AgentServerRow) => (server.problem ? UNKNOWN : text(server)) };
}

const SERVER_COLUMNS: DataColumn<AgentServerRow>[] = [
  {
    id: "address",
    title: "Agent server",
    width: "minmax(150px, 1fr)",
    link: true,
    cell: (server) => <span class="mono">{server.address}</span>,
  },
  known({ id: "agents", title: "Agents", width: "80px" }, (server) => formatNumber(server.agents)),
  known({ id: "queued", title: "Queued calls", width: "90px" }, (server) => formatNumber(server.queued)),
  known({ id: "rate", title: "Calls per second", width: "110px" }, (server) => formatRate(server.calls_per_second)),
  known({ id: "memory", title: "Memory", width: "80px" }, (server) => formatBytes(server.memory)),
  known({ id: "seconds", title: "Up", width: "80px" }, (server) => formatAge(server.seconds)),
  {
    id: "problem",
    title: "",
    width: "minmax(120px, 2fr)",
    cell: (server) => (
      <span class="problem" title={server.problem}>
        {server.problem}
      </span>
    ),
  },
];

function formatRate(rate: number): string {
  return formatNumber(rate, rate > 0 && rate < 10 ? 1 : 0);
}

function NoServers() {
  return (
    <section class="panel no-resources">
      <h2>No agent servers</h2>
      <p class="soft">
        Name the servers of <code>paragent agent-server</code> when you start the view:
      </p>
      <pre>paragent view --agent-server localhost:12345</pre>
    </section>
  );
}

function Server({ id }: { id: string }) {
  const { data, error } = usePolledData<AgentServerDetail>(["servers", id], POLL_SECONDS);
  return (
    <Layout crumbs={[{ label: "Agent servers", address: href(["servers"]) }, { label: id }]}>
      <div class="resource-page">
        <div class="resource-title">
          <h1>{id}</h1>
        </div>
        {error && <Message kind="error">{error}</Message>}
        {!error && !data && <Message kind="loading">Asking the agent server…</Message>}
        {data?.row.problem && <p class="resource-problem">{data.row.problem}</p>}
        {data && !data.row.problem && <ServerContent detail={data} />}
      </div>
    </Layout>
  );
}

function ServerContent({ detail: { row, agents } }: { detail: AgentServerDetail }) {
  const { params } = useRoute();
  const sort = parseSort(params.get("sort"));
  const rows = useMemo(() => sortRows(agents, sort), [agents, params.get("sort")]);
  return (
    <>
      <Figures
        figures={[
          { label: "Agents", value: formatNumber(row.agents) },
          { label: "Queued calls", value: formatNumber(row.queued) },
          { label: "Calls per second", value: formatRate(row.calls_per_second) },
          { label: "Memory", value: formatBytes(row.memory) },
          { label: "Up", value: formatAge(row.seconds), wide: true },
        ]}
      />
      <section class="panel">
        {agents.length < row.agents && (
          <header class="soft">
            {counted(agents.length, "agent")} of {formatNumber(row.agents)}: those with the longest queues first
          </header>
        )}
        <DataTable
          label="Agents"
          columns={agents.some((agent) => agent.error) ? [...AGENT_COLUMNS, ERROR_COLUMN] : AGENT_COLUMNS}
          rows={rows}
          rowKey={(agent) => agent.id}
          sort={sort}
          onSort={(next) => setParams({ sort: sortText(next) })}
          empty={<Message>The server has no agents.</Message>}
        />
      </section>
    </>
  );
}

const AGENT_COLUMNS: DataColumn<ServedAgent>[] = [
  {
    id: "name",
    title: "Name",
    width: "minmax(120px, 1fr)",
    sortable: true,
    cell: (agent) => cleanText(agent.name) || UNKNOWN,
  },
  {
    id: "kind",
    title: "Class",
    width: "minmax(120px, 1fr)",
    sortable: true,
    cell: (agent) => cleanText(agent.kind) || UNKNOWN,
  },
  {
    id: "id",
    title: "Id",
    width: "minmax(120px, 1fr)",
    sortable: true,
    hint: "The beginning of the client's session, and the number of the agent in it",
    cell: (agent) => <span class="mono">{agent.id}</span>,
  },
  numeric("queued", "Queued", "Calls that wait", (agent) => <Count value={agent.queued} />),
  numeric("running", "Running", "Calls that are executed", (agent) => <Count value={agent.running} />),
  numeric("calls", "Calls", "Calls that have ended", (agent) => <Count value={agent.calls} />),
  numeric("failed", "Failed", "Calls that ended with an error", (agent) => <Count value={agent.failed} bad />),
  numeric("seconds", "Work", "Time of all calls that have ended", (agent) => formatDuration(agent.seconds)),
];

const ERROR_COLUMN: DataColumn<ServedAgent> = {
  id: "error",
  title: "Error",
  width: "minmax(200px, 2fr)",
  hint: "Why the agent could not be constructed",
  cell: (agent) => (
    <span class="resource-problem" title={cleanText(agent.error)}>
      {cleanText(agent.error)}
    </span>
  ),
};

function numeric(
  id: string,
  title: string,
  hint: string,
  cell: DataColumn<ServedAgent>["cell"],
): DataColumn<ServedAgent> {
  return { id, title, hint, cell, width: "90px", numeric: true, sortable: true, descendingFirst: true };
}

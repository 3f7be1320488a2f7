import { useEffect, useMemo, useState } from "preact/hooks";
import type { EngineDetail, EngineWorker } from "../api";
import { Count } from "../components/Count";
import { type DataColumn, DataTable } from "../components/DataTable";
import { EventTable } from "../components/EventTable";
import { Figures } from "../components/Figures";
import { Layout } from "../components/Layout";
import { Message } from "../components/Message";
import { StateCounts } from "../components/StateCounts";
import { StateLabel } from "../components/StateLabel";
import { formatAge, formatNumber, formatShortTime, formatTime } from "../format";
import { useElapsed, usePolledData } from "../polling";
import { sortRows } from "../resources";
import { href, setParams, useRoute } from "../router";
import { parseSort, sortText } from "../sorting";
import "./resources.css";

const POLL_SECONDS = 2;
const ENDED_POLL_SECONDS = 30;

/** The engine of a run: its workers, and what happened to them. */
export function EnginePage({ run }: { run: string }) {
  const [isLive, setLive] = useState(true);
  const pause = isLive ? POLL_SECONDS : ENDED_POLL_SECONDS;
  const { data, error, receivedAt } = usePolledData<EngineDetail>(["runs", run, "engine"], pause);
  useEffect(() => setLive(data?.live ?? true), [data]);
  const crumbs = [
    { label: "Runs", address: href([]) },
    { label: run, address: href(["run", run]) },
    { label: "Engine" },
  ];
  return (
    <Layout crumbs={crumbs}>
      <div class="resource-page">
        <div class="resource-title">
          <h1>Engine {data?.engine}</h1>
          {data && <StateLabel state={data.live ? "running" : "stopped"} />}
        </div>
        {error && <Message kind="error">{error}</Message>}
        {!error && !data && <Message kind="loading">Loading…</Message>}
        {data && <EngineContent detail={data} receivedAt={receivedAt} />}
      </div>
    </Layout>
  );
}

function EngineContent({ detail, receivedAt }: { detail: EngineDetail; receivedAt: number }) {
  const { params } = useRoute();
  useElapsed(receivedAt); // the time of live workers goes on
  const sort = parseSort(params.get("sort"));
  const { workers } = detail;
  const rows = useMemo(() => sortRows(workers, sort), [workers, params.get("sort")]);
  const counts: Record<string, number> = {};
  for (const worker of workers) counts[worker.state] = (counts[worker.state] ?? 0) + 1;
  const events = useMemo(
    () => detail.events.map(([at, name, state, why]) => ({ at, name, state, detail: why })),
    [detail],
  );
  return (
    <>
      <Figures
        figures={[
          { label: "Workers", value: <StateCounts counts={counts} />, wide: true },
          {
            label: "Rollouts under way",
            value: formatNumber(workers.reduce((sum, worker) => sum + worker.active, 0)),
          },
          { label: "Restarts", value: formatNumber(detail.restarts) },
          { label: "Lost executions", value: <Count value={detail.lost} bad /> },
        ]}
      />
      <section class="panel">
        <DataTable
          label="Workers"
          columns={COLUMNS}
          rows={rows}
          rowKey={(worker) => worker.name}
          sort={sort}
          onSort={(next) => setParams({ sort: sortText(next) })}
          empty={<Message>No worker has started yet.</Message>}
        />
      </section>
      <EventTable title="Events" nameTitle="Worker" events={events} />
    </>
  );
}

const ENDED = ["lost", "stopped"];

function Since({ worker }: { worker: EngineWorker }) {
  if (!worker.since) return null;
  const text = ENDED.includes(worker.state)
    ? formatShortTime(worker.since)
    : `for ${formatAge(Date.now() / 1000 - worker.since)}`;
  return <span title={formatTime(worker.since)}>{text}</span>;
}

const COLUMNS: DataColumn<EngineWorker>[] = [
  {
    id: "name",
    title: "Worker",
    width: "minmax(160px, 1fr)",
    hint: "Host and process id",
    sortable: true,
    cell: (worker) => <span class="mono">{worker.name}</span>,
  },
  {
    id: "state",
    title: "State",
    width: "120px",
    sortable: true,
    cell: (worker) => <StateLabel state={worker.state} />,
  },
  {
    id: "since",
    title: "Since",
    width: "minmax(130px, 1fr)",
    sortable: true,
    cell: (worker) => <Since worker={worker} />,
  },
  numeric("active", "Under way", "Rollouts that it executes now", (worker) => <Count value={worker.active} />),
  numeric("done", "Done", "Executions that ended in it", (worker) => <Count value={worker.done} />),
  numeric("lost", "Lost", "Executions that were lost with it", (worker) => <Count value={worker.lost} bad />),
];

function numeric(
  id: string,
  title: string,
  hint: string,
  cell: DataColumn<EngineWorker>["cell"],
): DataColumn<EngineWorker> {
  return { id, title, hint, cell, width: "90px", numeric: true, sortable: true, descendingFirst: true };
}

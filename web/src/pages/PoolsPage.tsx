import { useMemo } from "preact/hooks";
import type { PoolDetail, PoolList, PoolRow } from "../api";
import { type DataColumn, DataTable } from "../components/DataTable";
import { EventTable } from "../components/EventTable";
import { Figures } from "../components/Figures";
import { Layout } from "../components/Layout";
import { Message } from "../components/Message";
import { StateCounts } from "../components/StateCounts";
import { formatNumber, UNKNOWN } from "../format";
import { type Polled, usePolledData } from "../polling";
import { href, setParams, useRoute } from "../router";
import { MachinePanel } from "./pools/MachinePanel";
import { MachineTable } from "./pools/MachineTable";
import "./resources.css";

const POLL_SECONDS = 2;

/** All pools, or one of them with its machines. */
export function PoolsPage({ id }: { id?: string | undefined }) {
  return id === undefined ? <Pools /> : <Pool key={id} id={id} />;
}

function Pools() {
  const { data, error } = usePolledData<PoolList>(["pools"], POLL_SECONDS);
  return (
    <Layout crumbs={[{ label: "Pools" }]}>
      <h1 class="visually-hidden">Pools</h1>
      {error && <Message kind="error">{error}</Message>}
      {!error && !data && <Message kind="loading">Asking the pools…</Message>}
      {data?.pools.length === 0 && <NoPools />}
      {data !== undefined && data.pools.length > 0 && (
        <section class="panel resource-page">
          <DataTable
            label="Pools"
            columns={COLUMNS}
            rows={data.pools}
            rowKey={(pool) => pool.id}
            rowHref={(pool) => href(["pools", pool.id])}
            rowHeight={38}
          />
        </section>
      )}
    </Layout>
  );
}

const COLUMNS: DataColumn<PoolRow>[] = [
  {
    id: "address",
    title: "Pool",
    width: "minmax(150px, 1fr)",
    link: true,
    cell: (pool) => <span class="mono">{pool.address}</span>,
  },
  { id: "run", title: "Run", width: "minmax(120px, 1fr)", cell: (pool) => <RunLink run={pool.run} /> },
  { id: "provider", title: "Provider", width: "90px", cell: (pool) => pool.provider || UNKNOWN },
  {
    id: "states",
    title: "Machines",
    width: "minmax(240px, 2fr)",
    cell: (pool) => (pool.problem ? <Problem text={pool.problem} /> : <StateCounts counts={pool.states} />),
  },
  {
    id: "waiting",
    title: "Waiting",
    width: "64px",
    numeric: true,
    hint: "Requests that wait for a machine",
    cell: (pool) => formatNumber(pool.waiting),
  },
];

function Problem({ text }: { text: string }) {
  return (
    <span class="problem" title={text}>
      {text}
    </span>
  );
}

function RunLink({ run }: { run: string }) {
  return run ? <a href={href(["run", run])}>{run}</a> : <span class="soft">any</span>;
}

function NoPools() {
  return (
    <section class="panel no-resources">
      <h2>No pools</h2>
      <p class="soft">
        The pool of a live run appears here by itself. Name a pool of <code>paragent pool serve</code> when you start
        the view:
      </p>
      <pre>paragent view --pool-address 127.0.0.1:7000</pre>
    </section>
  );
}

function Pool({ id }: { id: string }) {
  const polled = usePolledData<PoolDetail>(["pools", id], POLL_SECONDS);
  const { data, error } = polled;
  return (
    <Layout crumbs={[{ label: "Pools", address: href(["pools"]) }, { label: id }]}>
      <div class="resource-page">
        <div class="resource-title">
          <h1>{data?.row.run ? `Pool of ${data.row.run}` : `Pool at ${id}`}</h1>
          {data && <span class="soft">{[data.row.provider, data.row.address].filter(Boolean).join(" · ")}</span>}
        </div>
        {error && <Message kind="error">{error}</Message>}
        {!error && !data && <Message kind="loading">Asking the pool…</Message>}
        {data && <PoolContent polled={polled} detail={data} />}
      </div>
    </Layout>
  );
}

function PoolContent({ polled, detail }: { polled: Polled<PoolDetail>; detail: PoolDetail }) {
  const { params } = useRoute();
  const { row, machines } = detail;
  const chosen = machines.find((machine) => machine.name === params.get("machine"));
  const events = useMemo(
    () =>
      detail.events.map(([at, name, state, holder, why]) => ({
        at,
        name,
        state,
        detail: [holder, why].filter(Boolean).join(" · "),
      })),
    [detail],
  );
  if (machines.length === 0 && row.problem) return <p class="resource-problem">{row.problem}</p>;
  return (
    <>
      {row.problem && <p class="resource-problem">{row.problem}</p>}
      <Figures
        figures={[
          { label: "Machines", value: <StateCounts counts={row.states} />, wide: true },
          { label: "Requests that wait", value: formatNumber(row.waiting) },
          { label: "Failures", value: formatNumber(machines.reduce((sum, machine) => sum + machine.failures, 0)) },
          { label: "Run", value: <RunLink run={row.run} /> },
        ]}
      />
      <div class={chosen ? "with-machine" : ""}>
        <div class="pool-machines">
          <MachineTable detail={detail} receivedAt={polled.receivedAt} isNarrow={chosen !== undefined} />
          <EventTable title="Events" nameTitle="Machine" events={events} />
        </div>
        {chosen && (
          <MachinePanel
            key={chosen.name}
            pool={row}
            machine={chosen}
            receivedAt={polled.receivedAt}
            onChange={polled.refresh}
            onClose={() => setParams({ machine: null })}
          />
        )}
      </div>
    </>
  );
}

import { useEffect, useMemo, useState } from "preact/hooks";
import type { RunList, RunRow } from "../api";
import { type DataColumn, DataTable } from "../components/DataTable";
import { IntervalBar } from "../components/IntervalBar";
import { Layout } from "../components/Layout";
import { Message } from "../components/Message";
import { StackedBar } from "../components/StackedBar";
import { StateLabel } from "../components/StateLabel";
import {
  counted,
  formatCompact,
  formatCost,
  formatDuration,
  formatNumber,
  formatScore,
  formatShortTime,
  formatTime,
  UNKNOWN,
} from "../format";
import { href, navigate, setParams, useRoute } from "../router";
import { scoreRange, selectRuns, statusParts } from "../runs";
import { parseSort, sortText } from "../sorting";
import { settings, useData, useEvents } from "../source";
import "./RunsPage.css";

/** The height of the bar above the table, below which the head of the table sticks. */
const TOOLBAR = 52;
const POLL_SECONDS = 5;

/** All runs of the folder. */
export function RunsPage() {
  const { params } = useRoute();
  const { runs, error } = useRuns();
  const words = params.get("q") ?? "";
  const sort = parseSort(params.get("sort"));
  const chosen = useMemo(
    () => new Set((params.get("selected") ?? "").split(",").filter(Boolean)),
    [params.get("selected")],
  );
  const shown = useMemo(() => selectRuns(runs ?? [], words, sort), [runs, words, params.get("sort")]);
  const columns = useMemo(() => runColumns(scoreRange(runs ?? [])), [runs]);
  const choose = (name: string, isChosen: boolean) => {
    const names = isChosen ? [...chosen, name] : [...chosen].filter((one) => one !== name);
    setParams({ selected: names.join(",") });
  };
  return (
    <Layout crumbs={[{ label: "Runs" }]}>
      <h1 class="visually-hidden">Runs</h1>
      {error && <Message kind="error">{error}</Message>}
      {!error && !runs && <Message kind="loading">Loading…</Message>}
      {runs?.length === 0 && <HowToStart />}
      {runs !== undefined && runs.length > 0 && (
        <section class="panel runs-page">
          <header class="toolbar">
            <input
              type="search"
              placeholder="Search name, mode, model, engine"
              aria-label="Search runs"
              value={words}
              onInput={(event) => setParams({ q: event.currentTarget.value })}
            />
            <span class="soft" role="status">
              {shown.length === runs.length
                ? counted(runs.length, "run")
                : `${formatNumber(shown.length)} of ${counted(runs.length, "run")}`}
            </span>
            <span class="spacer" />
            {chosen.size > 0 && (
              <button type="button" class="button" onClick={() => setParams({ selected: null })}>
                Clear selection
              </button>
            )}
            <button
              type="button"
              class="button primary"
              disabled={chosen.size < 2}
              title={chosen.size < 2 ? "Select two or more runs to compare them" : undefined}
              onClick={() => navigate(href(["compare"], { runs: [...chosen].join(",") }))}
            >
              Compare{chosen.size > 0 ? ` ${chosen.size}` : ""}
            </button>
          </header>
          <DataTable
            label="Runs"
            columns={columns}
            rows={shown}
            rowKey={(run) => run.name}
            rowHref={(run) => href(["run", run.name])}
            rowHeight={38}
            stickyTop={48 + TOOLBAR}
            sort={sort}
            onSort={(next) => setParams({ sort: sortText(next) })}
            selected={chosen}
            onSelect={(key, isChosen) => choose(String(key), isChosen)}
            empty={<Message>No run contains these words.</Message>}
          />
        </section>
      )}
    </Layout>
  );
}

/** The runs; events of the server replace them while some are live. */
function useRuns(): { runs: RunRow[] | undefined; error: string } {
  const { data, error, reload } = useData<RunList>(["runs"]);
  const [newest, setNewest] = useState<RunRow[]>();
  useEffect(() => setNewest(undefined), [data]);
  const isConnected = useEvents<RunList>(["events"], (name, list) => {
    if (name === "runs") setNewest(list.runs);
  });
  useEffect(() => {
    if (settings.static || isConnected) return;
    const timer = setInterval(reload, POLL_SECONDS * 1000);
    return () => clearInterval(timer);
  }, [isConnected]);
  return { runs: newest ?? data?.runs, error: newest || data ? "" : error };
}

function runColumns(range: [number, number]): DataColumn<RunRow>[] {
  const all: DataColumn<RunRow>[] = [
    { id: "state", title: "State", width: "92px", cell: (run) => <StateLabel state={run.state} /> },
    {
      id: "name",
      title: "Run",
      width: "minmax(130px, 2fr)",
      link: true,
      cell: (run) => (
        <>
          {run.name}
          {run.origin && <span class="origin">{run.origin}</span>}
        </>
      ),
    },
    { id: "mode", title: "Mode", width: "minmax(52px, 0.5fr)", cell: (run) => run.mode },
    { id: "model", title: "Model", width: "minmax(90px, 1fr)", cell: (run) => run.model },
    { id: "engine", title: "Engine", width: "minmax(50px, 0.4fr)", cell: (run) => run.engine },
    {
      id: "score",
      title: "Score",
      width: "minmax(128px, 1fr)",
      descendingFirst: true,
      hint: "Mean score of the measured results with its 95 % interval",
      cell: (run) =>
        run.score === null ? (
          UNKNOWN
        ) : (
          <span class="score">
            <span class="number">{formatScore(run.score)}</span>
            <IntervalBar mean={run.score} interval={run.interval} range={range} />
          </span>
        ),
    },
    {
      id: "progress",
      title: "Progress",
      width: "minmax(176px, 1.2fr)",
      descendingFirst: true,
      hint: "Rollouts with a result, of all, by status; and replies that were cut",
      cell: (run) => (run.problem ? <span class="problem">{run.problem}</span> : <RunProgress run={run} />),
    },
    {
      id: "cost",
      title: "Cost",
      width: "66px",
      numeric: true,
      descendingFirst: true,
      cell: (run) => formatCost(run.cost),
    },
    {
      id: "tokens",
      title: "Tokens",
      width: "58px",
      numeric: true,
      descendingFirst: true,
      cell: (run) => formatCompact(run.tokens),
    },
    {
      id: "seconds",
      title: "Time",
      width: "64px",
      numeric: true,
      descendingFirst: true,
      cell: (run) => formatDuration(run.seconds),
    },
    {
      id: "started",
      title: "Started",
      width: "104px",
      numeric: true,
      descendingFirst: true,
      cell: (run) => <span title={formatTime(run.started)}>{formatShortTime(run.started)}</span>,
    },
  ];
  return all.map((column) => ({ ...column, sortable: true }));
}

function RunProgress({ run }: { run: RunRow }) {
  return (
    <span class="progress">
      <StackedBar parts={statusParts(run)} total={run.total} />
      <span class="number">
        {formatNumber(run.done)}/{formatNumber(run.total)}
      </span>
      {run.cut > 0 && (
        <span class="cut" title="Replies that were cut at the limit of tokens or of the context">
          {formatNumber(run.cut)} cut
        </span>
      )}
    </span>
  );
}

function HowToStart() {
  return (
    <section class="panel how-to">
      <h2>No runs yet</h2>
      <p class="soft">
        There are no runs in <code>{settings.folder}</code>. Start one, and it appears here:
      </p>
      <pre>
        {"paragent rollout --mode math --data tasks.jsonl --model MODEL \\\n    --output-dir "}
        {settings.folder}
      </pre>
      <p class="soft">
        Without a model, <code>paragent demo</code> executes sample tasks with a scripted policy.
      </p>
    </section>
  );
}

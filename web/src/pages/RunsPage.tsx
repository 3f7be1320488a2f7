import { useEffect, useMemo, useState } from "preact/hooks";
import type { RunList, RunRow } from "../api";
import { type DataColumn, DataTable, shareByLength } from "../components/DataTable";
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
import {
  failureCount,
  isMostlyUnmeasured,
  outcomeCounts,
  outcomeParts,
  scoreRange,
  selectRuns,
  stateWarning,
} from "../runs";
import { parseSort, sortText } from "../sorting";
import { settings, useData, useEvents } from "../source";
import "./RunsPage.css";

/** The height of the bar above the table, below which the head of the table sticks. */
const TOOLBAR = 52;
const POLL_SECONDS = 5;

/** All runs of the folder. */
export function RunsPage() {
  const { params } = useRoute();
  const { runs, below, error } = useRuns();
  const words = params.get("q") ?? "";
  const sort = parseSort(params.get("sort"));
  const chosen = useMemo(
    () => new Set((params.get("selected") ?? "").split(",").filter(Boolean)),
    [params.get("selected")],
  );
  const shown = useMemo(() => selectRuns(runs ?? [], words, sort), [runs, words, params.get("sort")]);
  const columns = useMemo(() => runColumns(runs ?? []), [runs]);
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
              placeholder="Search name, data, model, scorer"
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
      {below.length > 0 && <FoldersBelow names={below} />}
    </Layout>
  );
}

/** The runs; events of the server replace them while some are live. */
function useRuns(): { runs: RunRow[] | undefined; below: string[]; error: string } {
  const { data, error, reload } = useData<RunList>(["runs"]);
  const [newest, setNewest] = useState<RunList>();
  useEffect(() => setNewest(undefined), [data]);
  const isConnected = useEvents<RunList>(["events"], (name, list) => {
    if (name === "runs") setNewest(list);
  });
  useEffect(() => {
    if (settings.static || isConnected) return;
    const timer = setInterval(reload, POLL_SECONDS * 1000);
    return () => clearInterval(timer);
  }, [isConnected]);
  const list = newest ?? data;
  return { runs: list?.runs, below: list?.below ?? [], error: list ? "" : error };
}

function runColumns(runs: RunRow[]): DataColumn<RunRow>[] {
  const range = scoreRange(runs);
  const share = (name: "name" | "data" | "mode" | "metric" | "model") =>
    shareByLength(runs.map((run) => (name === "name" && run.origin ? `${run.name}  ${run.origin}` : run[name])));
  const all: (DataColumn<RunRow> | null)[] = [
    {
      id: "state",
      title: "State",
      width: "92px",
      cell: (run) => <StateLabel state={run.state} colour={stateWarning(run)} />,
    },
    {
      id: "name",
      title: "Run",
      width: share("name"),
      link: true,
      cell: (run) => (
        <>
          <Whole text={run.name} />
          {run.origin && <span class="origin">{run.origin}</span>}
        </>
      ),
    },
    { id: "data", title: "Data", width: share("data"), cell: (run) => <Whole text={run.data} /> },
    { id: "mode", title: "Mode", width: share("mode"), cell: (run) => <Whole text={run.mode} /> },
    { id: "metric", title: "Scorer", width: share("metric"), cell: (run) => <Whole text={run.metric} /> },
    { id: "model", title: "Model", width: share("model"), cell: (run) => <Whole text={run.model} /> },
    {
      id: "score",
      title: "Score",
      width: `${Math.max(104, ...runs.filter(isMostlyUnmeasured).map((run) => 7 * measuredOf(run).length))}px`,
      descendingFirst: true,
      hint: "Mean score of the measured results with its 95 % interval",
      cell: (run) =>
        run.score === null ? (
          UNKNOWN
        ) : (
          <span class="score">
            <span class="number">{formatScore(run.score)}</span>
            <IntervalBar mean={run.score} interval={run.interval} range={range} />
            {isMostlyUnmeasured(run) && (
              <span class="few-measured" title="The score is the mean of these rollouts only">
                {measuredOf(run)}
              </span>
            )}
          </span>
        ),
    },
    {
      id: "progress",
      title: "Progress",
      width: "112px",
      descendingFirst: true,
      hint: "Rollouts with a result, of all, by outcome; failures, and replies that were cut",
      cell: (run) =>
        run.problem ? (
          <span class="problem" title={run.problem}>
            {run.problem}
          </span>
        ) : (
          <RunProgress run={run} />
        ),
    },
    runs.some((run) => run.cost !== null)
      ? {
          id: "cost",
          title: "Cost",
          width: "66px",
          numeric: true,
          descendingFirst: true,
          cell: (run) => formatCost(run.cost),
        }
      : null,
    {
      id: "tokens",
      title: "Tokens",
      width: "54px",
      numeric: true,
      descendingFirst: true,
      cell: (run) => formatCompact(run.tokens),
    },
    {
      id: "seconds",
      title: "Time",
      width: "54px",
      numeric: true,
      descendingFirst: true,
      cell: (run) => formatDuration(run.seconds),
    },
    {
      id: "started",
      title: "Started",
      width: "62px",
      numeric: true,
      descendingFirst: true,
      cell: (run) => <Started epoch={run.started} />,
    },
  ];
  return all.filter((column) => column !== null).map((column) => ({ ...column, sortable: true }));
}

function measuredOf(run: RunRow): string {
  return `${formatNumber(run.measured)} of ${formatNumber(run.total)} measured`;
}

/** Text that is cut to the width of its column; the whole text is its tooltip. */
function Whole({ text }: { text: string }) {
  return <span title={text}>{text}</span>;
}

/** The day, and the time below it. */
function Started({ epoch }: { epoch: number | null }) {
  const [day, time] = formatShortTime(epoch).split(", ");
  return (
    <span class="started" title={formatTime(epoch)}>
      <span>{day}</span>
      <span class="soft">{time}</span>
    </span>
  );
}

function RunProgress({ run }: { run: RunRow }) {
  const failed = failureCount(run);
  return (
    <span class="progress">
      <StackedBar parts={outcomeParts(outcomeCounts(run))} total={run.total} />
      <span class="number">
        {formatNumber(run.done)}/{formatNumber(run.total)}
      </span>
      <span class="progress-notes">
        {failed > 0 && <span class="run-failed">{formatNumber(failed)} failed</span>}
        {run.cut > 0 && (
          <span class="cut" title="Replies that were cut at the limit of tokens or of the context">
            {formatNumber(run.cut)} cut
          </span>
        )}
      </span>
    </span>
  );
}

/** Most folders that are named. */
const FOLDERS = 5;

/** How to see the runs of the folders in this folder. */
function FoldersBelow({ names }: { names: string[] }) {
  return (
    <p class="folders-below soft">
      More runs in {counted(names.length, "folder")} below this one:
      {names.slice(0, FOLDERS).map((name) => (
        <code key={name}>
          paragent view {settings.folder}/{name}
        </code>
      ))}
      {names.length > FOLDERS && "…"}
    </p>
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

import { useMemo } from "preact/hooks";
import type { RunComparison, RunList } from "../api";
import { useComparison } from "../compare/comparison";
import { chosenFlips, FlipTable } from "../compare/FlipTable";
import { RunFigures, scorerWarning } from "../compare/RunFigures";
import { Trajectories } from "../compare/Trajectories";
import { Layout } from "../components/Layout";
import { Message } from "../components/Message";
import { counted, formatScore } from "../format";
import { href, setParams, useRoute } from "../router";
import { verdictOf } from "../rows";
import { useData } from "../source";
import { stateColour } from "../states";
import "./ComparePage.css";

/** Runs next to each other. `runs` of the address has their names; the first one is the baseline. */
export function ComparePage() {
  const { params } = useRoute();
  const runs = [...new Set((params.get("runs") ?? "").split(",").filter(Boolean))];
  const { data, error } = useComparison(runs);
  const task = params.get("task");
  const crumbs = [
    { label: "Runs", address: href([]) },
    { label: "Compare", ...(task ? { address: href(["compare"], withoutTask(params)) } : {}) },
    ...(task ? [{ label: task }] : []),
  ];
  return (
    <Layout crumbs={crumbs} actions={<AddRun runs={runs} />}>
      {runs.length < 2 ? (
        <Message>
          Choose {runs.length === 0 ? "two or more runs" : "another run"} to compare, here at the top or in the{" "}
          <a href={href([])}>list of runs</a>.
        </Message>
      ) : error !== "" ? (
        <Message kind="error">{error}</Message>
      ) : data === undefined ? (
        <Message kind="loading">Loading…</Message>
      ) : (
        <div class="compare">
          {task === null ? (
            <>
              <section class="panel" aria-label="Runs">
                {scorerWarning(data.runs) !== "" && (
                  <p class="compare-warning" role="alert">
                    {scorerWarning(data.runs)}
                  </p>
                )}
                <RunFigures comparison={data} runs={runs} />
              </section>
              <FlipTable comparison={data} runs={runs} />
            </>
          ) : (
            <TaskComparison comparison={data} runs={runs} task={task} params={params} />
          )}
        </div>
      )}
    </Layout>
  );
}

interface TaskComparisonProps {
  comparison: RunComparison;
  runs: string[];
  task: string;
  params: URLSearchParams;
}

function TaskComparison({ comparison, runs, task, params }: TaskComparisonProps) {
  const key = params.toString();
  const flips = useMemo(() => chosenFlips(comparison.flips, params), [comparison, key]);
  const position = flips.findIndex((flip) => flip.task === task);
  const flip = comparison.flips.find((each) => each.task === task);
  const go = (step: number) => {
    const next = flips[position + step];
    if (next !== undefined) setParams({ task: next.task, attempt: null }, false);
  };
  return (
    <section class="panel" aria-label={`Task ${task}`}>
      <header class="compare-head">
        <a href={href(["compare"], withoutTask(params))}>← {counted(comparison.flips.length, "task")} that differ</a>
        <h2 class="clipped">{task}</h2>
        <span class="soft clipped compare-question" title={flip?.question}>
          {flip?.question}
        </span>
        <span class="compare-scores">
          {flip?.scores.map((score, index) => (
            <>
              {index > 0 && " → "}
              <span class="verdict" style={{ "--colour": `var(${stateColour(verdictOf(score) ?? "")})` }}>
                {formatScore(score)}
              </span>
            </>
          ))}
        </span>
        <button type="button" class="button" disabled={position <= 0} onClick={() => go(-1)}>
          Previous
        </button>
        <button
          type="button"
          class="button"
          disabled={position < 0 || position >= flips.length - 1}
          onClick={() => go(1)}
        >
          Next
        </button>
      </header>
      <Trajectories runs={runs} task={task} attempt={Number(params.get("attempt") ?? 0)} flip={flip} />
    </section>
  );
}

function withoutTask(params: URLSearchParams): Record<string, string | null> {
  return { ...Object.fromEntries(params), task: null, attempt: null };
}

/** A menu with the other runs. */
function AddRun({ runs }: { runs: string[] }) {
  const { data } = useData<RunList>(["runs"]);
  const others = (data?.runs ?? []).filter((run) => !runs.includes(run.name) && run.state !== "unreadable");
  if (others.length === 0) return null;
  return (
    <select
      class="compare-add"
      aria-label="Add a run to the comparison"
      value=""
      onChange={(event) => setParams({ runs: [...runs, event.currentTarget.value].join(",") })}
    >
      <option value="" disabled>
        Add a run…
      </option>
      {others.map((run) => (
        <option key={run.name} value={run.name}>
          {run.name}
        </option>
      ))}
    </select>
  );
}

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ExecutionDetail, Flip, RolloutRows, TranscriptStep } from "../api";
import { Markdown } from "../components/Markdown";
import { Message } from "../components/Message";
import { StateLabel } from "../components/StateLabel";
import { counted, formatDuration, formatNumber, formatScore } from "../format";
import { AnswerText } from "../rollout/ResultPanel";
import { href, setParams } from "../router";
import { CUT_ENDINGS, outcomeOf } from "../rows";
import { address, load } from "../source";
import { hasMarkup } from "../text";
import {
  type AlignedStep,
  alignSteps,
  differingWords,
  firstDifference,
  sameStep,
  splitDifference,
  splitLines,
} from "./divergence";

/** Longer texts are cut until the reader asks for all of it. */
const SHOWN_LENGTH = 1200;
const MARKED_LENGTH = 80;

interface TrajectoriesProps {
  runs: string[];
  task: string;
  /** 0: the first one. */
  attempt: number;
  flip: Flip | undefined;
}

/** The trajectories of a task in each run, side by side, from the first step that differs. */
export function Trajectories({ runs, task, attempt, flip }: TrajectoriesProps) {
  const { executions, error } = useExecutions(runs, task, attempt, flip);
  if (error !== "") return <Message kind="error">{error}</Message>;
  if (executions === undefined) return <Message kind="loading">Loading…</Message>;
  return <SideBySide key={`${task}#${attempt}`} runs={runs} executions={executions} attempt={attempt} />;
}

interface SideBySideProps {
  runs: string[];
  /** Null: the run has no result of this task. */
  executions: (ExecutionDetail | null)[];
  attempt: number;
}

export function SideBySide({ runs, executions, attempt }: SideBySideProps) {
  const present = executions.filter((each) => each !== null);
  const aligned = useMemo(() => alignSteps(present.map((each) => each.steps)), [executions]);
  const difference = firstDifference(aligned);
  const [showSame, setShowSame] = useState(false);
  const marked = useRef<HTMLDivElement>(null);
  useEffect(() => marked.current?.scrollIntoView({ block: "center" }), [aligned]);
  const attempts = [...new Set(present.flatMap((each) => each.attempts.map((one) => one.attempt)))].sort(
    (a, b) => a - b,
  );
  const reference = present.find((each) => each.reference)?.reference;
  const before = difference ?? aligned.length;
  const hidden = showSame || difference === null || before <= 1 ? 0 : before - 1;
  const columns = { gridTemplateColumns: `repeat(${present.length}, minmax(230px, 1fr))` };
  return (
    <div class="trajectories">
      <div class="trajectory-tools">
        <strong>
          {present.length < 2
            ? "Only one run has a result of this task."
            : difference === null
              ? `All ${counted(aligned.length, "step")} are the same.`
              : `The first difference is in step ${difference}.`}
        </strong>
        {difference !== null && (
          <button
            type="button"
            class="button"
            onClick={() => marked.current?.scrollIntoView({ block: "center", behavior: "smooth" })}
          >
            Go to the first difference
          </button>
        )}
        {attempts.length > 1 && (
          <label>
            Attempt{" "}
            <select
              value={String(attempt || attempts[0])}
              onChange={(event) => setParams({ attempt: event.currentTarget.value })}
            >
              {attempts.map((each) => (
                <option key={each} value={String(each)}>
                  {each}
                </option>
              ))}
            </select>
          </label>
        )}
      </div>
      {reference && (
        <section class="trajectory-reference" aria-label="Reference">
          <h2>Reference</h2>
          <div>
            <AnswerText text={reference} />
          </div>
        </section>
      )}
      <div class="trajectory-grid">
        <div class="trajectory-row trajectory-heads" style={columns}>
          {executions.map((execution, index) =>
            execution === null ? null : (
              <ColumnHead key={runs[index]} run={runs[index] ?? ""} execution={execution} isBaseline={index === 0} />
            ),
          )}
        </div>
        {hidden > 0 && (
          <button type="button" class="trajectory-same" onClick={() => setShowSame(true)}>
            {counted(hidden, "step")} before this {hidden === 1 ? "is" : "are"} the same in all runs. Show
          </button>
        )}
        {aligned.slice(hidden).map((line) => (
          <StepLine
            key={line.index}
            line={line}
            executions={present}
            columns={columns}
            isFirst={line.index === difference}
            place={line.index === difference ? marked : undefined}
          />
        ))}
      </div>
      {executions.some((each) => each === null) && (
        <p class="soft">
          No result of this task in: {runs.filter((_, index) => executions[index] === null).join(", ")}
        </p>
      )}
    </div>
  );
}

interface ColumnHeadProps {
  run: string;
  execution: ExecutionDetail;
  isBaseline: boolean;
}

function ColumnHead({ run, execution, isBaseline }: ColumnHeadProps) {
  return (
    <div class="trajectory-head">
      <strong class="clipped" title={run}>
        {run}
        {isBaseline && <span class="compare-baseline">baseline</span>}
      </strong>
      <span>
        <StateLabel state={outcomeOf(execution.status, execution.score)} />, score {formatScore(execution.score)},{" "}
        {counted(execution.turns, "turn")}, {formatDuration(execution.seconds)}
        {CUT_ENDINGS.includes(execution.ending) && <span class="cut">, {execution.ending}</span>}
      </span>
      <a href={href(["run", run, "rollout", execution.task, execution.attempt], { execution: execution.number })}>
        Open the rollout
      </a>
    </div>
  );
}

interface StepLineProps {
  line: AlignedStep;
  executions: ExecutionDetail[];
  columns: { gridTemplateColumns: string };
  isFirst: boolean;
  place: { current: HTMLDivElement | null } | undefined;
}

function StepLine({ line, executions, columns, isFirst, place }: StepLineProps) {
  const [baseline = null] = line.steps;
  return (
    <div class={`trajectory-row ${isFirst ? "first-difference" : ""}`} style={columns} ref={place ?? null}>
      {isFirst && <div class="difference-mark">First difference: step {line.index}</div>}
      {line.same ? (
        <div class="trajectory-step shared">
          <StepText step={baseline} other={null} execution={executions[0]} />
        </div>
      ) : (
        line.steps.map((step, index) => (
          <div class={`trajectory-step ${index > 0 && !sameStep(step, baseline) ? "differs" : ""}`} key={index}>
            <StepText
              step={step}
              other={index === 0 ? (line.steps.find((each) => !sameStep(each, baseline)) ?? null) : baseline}
              execution={executions[index]}
            />
          </div>
        ))
      )}
    </div>
  );
}

interface StepTextProps {
  step: TranscriptStep | null;
  /** The step to compare with: the parts of the text that differ from it are marked. */
  other: TranscriptStep | null;
  execution: ExecutionDetail | undefined;
}

/** A step in short: its kind, its text and its calls. */
function StepText({ step, other, execution }: StepTextProps) {
  if (step === null || execution === undefined) return <span class="soft">ended</span>;
  const link = href(["run", execution.run, "rollout", execution.task, execution.attempt], {
    execution: execution.number,
    step: step.index,
  });
  return (
    <>
      <div class="trajectory-step-head">
        <a href={link} title="Open this step">
          {step.index} {step.kind}
        </a>
        {step.name !== "" && <span class="soft clipped">{step.name}</span>}
        {step.error && <StateLabel state="failed" />}
      </div>
      {step.reasoning !== "" && (
        <details>
          <summary class="soft">Reasoning, {counted(step.reasoning.length, "character")}</summary>
          <LongText text={step.reasoning} other={null} isMessage />
        </details>
      )}
      {step.text !== "" && <LongText text={step.text} other={other?.text ?? null} isMessage={step.kind !== "tool"} />}
      {step.calls.map((call, index) => (
        <LongText
          key={index}
          mono
          text={`${call.name}(${call.arguments})`}
          other={other?.calls[index] ? `${other.calls[index].name}(${other.calls[index].arguments})` : null}
        />
      ))}
      {step.images.length > 0 && (
        <div class="trajectory-images">
          {step.images.slice(0, 2).map((file) => (
            <img
              key={file}
              src={address(["runs", execution.run, "images", execution.number, file])}
              alt={`Step ${step.index}: ${file}`}
              loading="lazy"
            />
          ))}
          {step.images.length > 2 && <span class="soft">and {step.images.length - 2} more</span>}
        </div>
      )}
    </>
  );
}

interface LongTextProps {
  text: string;
  /** The text to compare with. */
  other: string | null;
  mono?: boolean;
  /** Whether Markdown and formulas are drawn. */
  isMessage?: boolean;
}

/** Text, cut if it is long, with the part that differs from another text marked: words, or lines of drawn text. */
export function LongText({ text, other, mono = false, isMessage = false }: LongTextProps) {
  const [isWhole, setWhole] = useState(false);
  const isDrawn = isMessage && hasMarkup(text);
  const parts = other === null ? null : (isDrawn ? splitLines : splitDifference)(text, other);
  // A text that has nothing in common with the other is not marked: all of it would be.
  const isMarked = parts !== null && (parts[1].length < text.length || (!isDrawn && text.length <= MARKED_LENGTH));
  const [before, differing, after] = isMarked ? parts : [text, "", ""];
  // The beginning of a long common part says less than the part that differs.
  const skipped = isWhole || differing === "" ? 0 : Math.max(0, before.length - SHOWN_LENGTH / 2);
  const budget = isWhole ? text.length : SHOWN_LENGTH;
  const first = before.slice(skipped, skipped + budget);
  const middle = differing.slice(0, Math.max(0, budget - first.length));
  const last = after.slice(0, Math.max(0, budget - first.length - middle.length));
  const theirs = isDrawn || other === null ? "" : splitDifference(other, text)[1];
  const cut = text.length - first.length - middle.length - last.length;
  return (
    <div class={`trajectory-text ${mono ? "mono" : ""} ${isDrawn ? "formatted" : ""}`}>
      {skipped > 0 && "… "}
      {isDrawn ? <Markdown text={first} /> : first}
      {middle !== "" && (isDrawn ? <MarkedLines text={middle} /> : <MarkedWords text={middle} other={theirs} />)}
      {isDrawn ? <Markdown text={last} /> : last}
      {cut > 0 && (
        <>
          {skipped === 0 || cut > skipped ? "… " : " "}
          <button type="button" class="link-button" onClick={() => setWhole(true)}>
            Show all {formatNumber(text.length)} characters
          </button>
        </>
      )}
    </div>
  );
}

function MarkedWords({ text, other }: { text: string; other: string }) {
  const pieces = useMemo(() => differingWords(text, other), [text, other]);
  return pieces.map(({ text, differs }, index) => (differs ? <mark key={index}>{text}</mark> : text));
}

function MarkedLines({ text }: { text: string }) {
  return (
    <div class="marked">
      <Markdown text={text} />
    </div>
  );
}

interface LoadedExecutions {
  executions: (ExecutionDetail | null)[] | undefined;
  error: string;
}

function useExecutions(runs: string[], task: string, attempt: number, flip: Flip | undefined): LoadedExecutions {
  const key = JSON.stringify([runs, task, attempt, flip?.executions]);
  const [state, setState] = useState<LoadedExecutions & { key: string }>({ key: "", executions: undefined, error: "" });
  useEffect(() => {
    const controller = new AbortController();
    Promise.all(
      runs.map((run, index) => loadExecution(run, task, attempt, flip?.executions[index], controller.signal)),
    ).then(
      (executions) => setState({ key, executions, error: "" }),
      (error: Error) => {
        if (!controller.signal.aborted) setState({ key, executions: undefined, error: error.message });
      },
    );
    return () => controller.abort();
  }, [key]);
  return state.key === key ? state : { executions: undefined, error: "" };
}

/** The execution of an attempt at a task; null if there is none. `known` is the first attempt's, if it is known. */
async function loadExecution(
  run: string,
  task: string,
  attempt: number,
  known: number | null | undefined,
  signal: AbortSignal,
): Promise<ExecutionDetail | null> {
  const number = known === undefined ? await findExecution(run, task, signal) : known;
  if (number === null) return null;
  const first = await load<ExecutionDetail>(["runs", run, "executions", number], {}, signal);
  if (attempt === 0 || first.attempt === attempt) return first;
  const wanted = first.attempts.find((each) => each.attempt === attempt);
  return wanted === undefined ? null : load(["runs", run, "executions", wanted.number], {}, signal);
}

/** Find a task whose score is the same in all runs: the comparison does not have its executions. */
async function findExecution(run: string, task: string, signal: AbortSignal): Promise<number | null> {
  for (let after: number | null = 0; after !== null; ) {
    const rows: RolloutRows = await load(["runs", run, "rollouts"], { after, limit: 20_000 }, signal);
    const row = rows.task.indexOf(task);
    if (row >= 0) return rows.number[row] ?? null;
    after = rows.next;
  }
  return null;
}

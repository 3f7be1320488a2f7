import type { ComponentChildren } from "preact";
import type { ExecutionDetail, ExecutionRef, TokenSequence } from "../api";
import { StateLabel } from "../components/StateLabel";
import { counted, formatCompact, formatDuration, formatNumber, formatScore, formatTime, UNKNOWN } from "../format";
import { href, type Params } from "../router";
import { CUT_ENDINGS, outcomeOf, verdictOf } from "../rows";
import { address } from "../source";
import { stateColour } from "../states";
import { cleanText, oneLine } from "../text";

/** The name of the rollout, its outcome, and links to its other executions and attempts. */
export function RolloutHead({
  detail,
  kept,
  actions,
}: {
  detail: ExecutionDetail;
  kept: Params;
  actions: ComponentChildren;
}) {
  const link = (ref: ExecutionRef) =>
    href(["run", detail.run, "rollout", ref.task, ref.attempt], {
      ...kept,
      execution: ref.number,
    });
  return (
    <header class="rollout-head">
      <h1 class="clipped" title={cleanText(detail.task)}>
        {oneLine(detail.task, 120)}
      </h1>
      <StateLabel state={outcomeOf(detail.status, detail.score)} />
      {detail.score !== null && (
        <span class="head-score">
          <span class="soft">score</span> {formatScore(detail.score)}
        </span>
      )}
      {detail.ending && (
        <span class={`clipped ${CUT_ENDINGS.includes(detail.ending) ? "cut" : "soft"}`}>
          {oneLine(detail.ending, 60)}
        </span>
      )}
      {!detail.final && <span class="soft">retried</span>}
      <span class="spring" />
      {detail.executions.length > 1 && (
        <RefList
          label="Executions"
          refs={detail.executions}
          current={detail.number}
          link={link}
          text={(_, index) => String(index + 1)}
        />
      )}
      {detail.attempts.length > 1 && (
        <RefList
          label="Attempts"
          refs={detail.attempts}
          current={detail.attempts.find((ref) => ref.attempt === detail.attempt)?.number ?? 0}
          link={link}
          text={(ref) => `${ref.attempt}${solvedMark(ref.score)}`}
        />
      )}
      {actions}
    </header>
  );
}

/** A sign for the score of an attempt; the word of its status is in its label. */
function solvedMark(score: number | null): string {
  if (score === null) return "";
  return verdictOf(score) === "right" ? " ✓" : " ✗";
}

interface RefListProps {
  label: string;
  refs: ExecutionRef[];
  current: number;
  link: (ref: ExecutionRef) => string;
  text: (ref: ExecutionRef, index: number) => string;
}

function RefList({ label, refs, current, link, text }: RefListProps) {
  return (
    <nav class="refs" aria-label={label}>
      <span class="soft">{label}</span>
      {refs.map((ref, index) => (
        <a
          key={ref.number}
          href={link(ref)}
          class="ref"
          aria-current={ref.number === current ? "true" : undefined}
          aria-label={`${label.slice(0, -1)} ${text(ref, index)}: ${ref.status}${ref.score === null ? "" : `, score ${formatScore(ref.score)}`}`}
          title={[ref.status, ref.score === null ? "" : formatScore(ref.score), ref.kind, formatTime(ref.ended)]
            .filter(Boolean)
            .join(" · ")}
          style={{ "--colour": `var(${stateColour(ref.status)})` }}
        >
          {text(ref, index)}
        </a>
      ))}
    </nav>
  );
}

/** Numbers, times and places of the execution. */
export function Details({ detail }: { detail: ExecutionDetail }) {
  const scores = Object.entries(detail.scores);
  const rows: [string, ComponentChildren][] = [
    ...scores.map(([name, score]): [string, ComponentChildren] => [name, formatScore(score)]),
    ["Turns", formatNumber(detail.turns)],
    ["Tool calls", formatNumber(detail.tool_calls)],
    ["Tokens", `${formatCompact(detail.prompt_tokens)} in, ${formatCompact(detail.completion_tokens)} out`],
    ...(detail.sequences.length > 0
      ? [["Token ids", sequenceText(detail.sequences)] as [string, ComponentChildren]]
      : []),
    ["Worked", formatDuration(detail.seconds)],
    ["Waited", formatDuration(detail.waited)],
    ["Started", formatTime(detail.started)],
    ["Ended", formatTime(detail.ended)],
    ["Worker", detail.worker || UNKNOWN],
    ...(detail.machine ? [["Machine", detail.machine] as [string, ComponentChildren]] : []),
    ["Execution", String(detail.number)],
  ];
  return (
    <section class="details panel" aria-label="Details">
      <dl>
        {rows.map(([name, value], index) => (
          <div key={index} class={index < scores.length ? "score-row" : undefined}>
            <dt>{cleanText(name)}</dt>
            <dd>{typeof value === "string" ? cleanText(value) : value}</dd>
          </div>
        ))}
      </dl>
      {detail.files.length > 0 && (
        <div class="files">
          <h2>Files</h2>
          <ul>
            {detail.files.map((name) => (
              <li key={name}>
                <a
                  href={address(["runs", detail.run, "images", detail.number, name])}
                  target="_blank"
                  rel="noopener noreferrer"
                >
                  {cleanText(name)}
                </a>
              </li>
            ))}
          </ul>
        </div>
      )}
      {detail.tools.length > 0 && <Tools tools={detail.tools} />}
    </section>
  );
}

/** The recorded token sequences: "1,234 in 2 sequences, 300 sampled, with logprobs". */
export function sequenceText(sequences: TokenSequence[]): string {
  const sum = (count: (one: TokenSequence) => number) => sequences.reduce((total, one) => total + count(one), 0);
  const logprobs = sequences.every((one) => one.logprobs) ? "with logprobs" : "not all with logprobs";
  const all = `${formatNumber(sum((one) => one.tokens))} in ${counted(sequences.length, "sequence")}`;
  return `${all}, ${formatNumber(sum((one) => one.sampled))} sampled, ${logprobs}`;
}

function Tools({ tools }: { tools: Record<string, unknown>[] }) {
  return (
    <details class="tools">
      <summary>Tools of the model ({tools.length})</summary>
      <ul>
        {tools.map((tool, index) => {
          const described = (tool.function ?? tool) as Record<string, unknown>;
          return (
            <li key={index}>
              <code>{cleanText(String(described.name ?? "(no name)"))}</code>{" "}
              <span class="soft">{oneLine(String(described.description ?? ""), 300)}</span>
            </li>
          );
        })}
      </ul>
    </details>
  );
}

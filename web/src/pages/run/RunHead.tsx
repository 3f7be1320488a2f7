import type { ComponentChildren } from "preact";
import type { LiveRun, RunDetail, RunRow } from "../../api";
import { IntervalBar } from "../../components/IntervalBar";
import { StackedBar } from "../../components/StackedBar";
import {
  counted,
  formatCompact,
  formatCost,
  formatDuration,
  formatInterval,
  formatNumber,
  formatPercent,
  formatScore,
  formatShortTime,
  formatTime,
  UNKNOWN,
} from "../../format";
import { changedAddress } from "../../router";
import type { RolloutFilter } from "../../rows";
import { outcomeParts, scoreRange } from "../../runs";
import { stateColour } from "../../states";

interface RunHeadProps {
  detail: RunDetail;
  live: LiveRun | null;
  /** Rollouts by outcome. */
  counts: Map<string, number>;
  filter: RolloutFilter;
}

/** The figures of a run. */
export function RunHead({ detail, live, counts, filter }: RunHeadProps) {
  return (
    <section class="panel" aria-label="Figures">
      <RunFacts row={detail.row} />
      <div class="run-figures">
        <Score detail={detail} live={live} />
        <Progress detail={detail} live={live} counts={counts} filter={filter} />
        <Requests detail={detail} live={live} />
        <Spend detail={detail} live={live} />
        <Machines detail={detail} live={live} />
        <Time detail={detail} live={live} />
      </div>
    </section>
  );
}

/** What was evaluated, and how it was scored. */
function RunFacts({ row }: { row: RunRow }) {
  const facts = {
    Data: row.data,
    Scorer: row.metric,
    Judge: row.judge,
    Model: row.model,
    Mode: row.mode,
    Engine: row.engine,
  };
  return (
    <dl class="run-facts">
      {Object.entries(facts)
        .filter(([, value]) => value !== "")
        .map(([name, value]) => (
          <div key={name} title={`${name}: ${value}`}>
            <dt>{name}</dt>
            <dd class="clipped">{value}</dd>
          </div>
        ))}
    </dl>
  );
}

function Figure(props: { label: string; value: ComponentChildren; class?: string; children?: ComponentChildren }) {
  return (
    <div class={`figure ${props.class ?? ""}`}>
      <span class="label">{props.label}</span>
      <span class="value">{props.value}</span>
      {props.children}
    </div>
  );
}

interface PartProps {
  detail: RunDetail;
  live: LiveRun | null;
}

const MEASURED =
  "Completed rollouts with a score, and failures and time-outs of the agent, which count as 0. Infrastructure failures, " +
  "answers whose scorer failed, cancelled and pending rollouts are not measured.";

function Score({ detail, live }: PartProps) {
  const { score, interval, measured, score_of_all, total } = detail.row;
  const shown = score ?? live?.mean_score ?? null;
  const means = Object.keys(detail.means).length > 1 ? Object.entries(detail.means) : [];
  const others = [
    ...Object.entries(detail.pass_at).map(([k, value]) => `pass@${k} ${formatScore(value)}`),
    ...means.map(([name, mean]) => {
      const count = detail.measured_by[name] ?? measured;
      return `${name} ${formatScore(mean)}${count === measured ? "" : ` (${formatNumber(count)} measured)`}`;
    }),
  ];
  const value = (
    <>
      {formatScore(shown)}
      {interval && <span class="soft"> {formatInterval(interval)}</span>}
    </>
  );
  return (
    <Figure label="Score" value={value} class="main-figure">
      {shown !== null && <IntervalBar mean={shown} interval={interval} range={scoreRange([detail.row])} />}
      <span class="detail clipped" title={MEASURED}>
        {measured > 0 ? `95 % interval · ${formatNumber(measured)} measured` : "nothing was measured"}
      </span>
      {score_of_all !== null && measured < total && (
        <span class="detail clipped" title="The mean of all rollouts, if those that were not measured count as 0">
          {formatScore(score_of_all)} with the others as 0
        </span>
      )}
      {others.length > 0 && (
        <span class="detail" title={others.join("\n")}>
          {others.join(" · ")}
        </span>
      )}
    </Figure>
  );
}

function Progress({ detail, live, counts, filter }: RunHeadProps) {
  const parts = outcomeParts(counts);
  const { row } = detail;
  const done = live?.done ?? row.done;
  const value = (
    <>
      {formatNumber(done)} <span class="soft">of {counted(row.total, "rollout")}</span>
    </>
  );
  const retries = detail.failures.reduce((sum, group) => sum + group.count - group.final, 0);
  const notes = [
    `${counted(detail.tasks, "task")}${detail.attempts > 1 ? ` × ${counted(detail.attempts, "attempt")}` : ""}`,
    ...(retries > 0 ? [counted(retries, "retry", "retries")] : []),
  ];
  return (
    <Figure label={`Done · ${notes.join(" · ")}`} value={value} class="progress-figure">
      <StackedBar parts={parts} total={row.total} />
      <span class="status-legend">
        {parts
          .filter((part) => part.count > 0)
          .map((part) => {
            const isChosen = filter.statuses.includes(part.state);
            return (
              <a
                key={part.state}
                class="state"
                style={{ "--colour": `var(${stateColour(part.state)})` }}
                href={changedAddress({ status: isChosen && filter.statuses.length === 1 ? null : part.state })}
                aria-current={isChosen ? "true" : undefined}
              >
                {formatNumber(part.count)} {part.state}
              </a>
            );
          })}
        {row.cut > 0 && (
          <a
            class="cut"
            href={changedAddress({ cut: filter.cut ? null : "1" })}
            aria-current={filter.cut ? "true" : undefined}
            title="Replies that were cut at the limit of tokens or of the context"
          >
            {formatNumber(row.cut)} cut
          </a>
        )}
      </span>
    </Figure>
  );
}

function Requests({ detail, live }: PartProps) {
  if (live && live.request_limit > 0) {
    return (
      <Figure
        label="Requests in flight"
        value={
          <>
            {formatNumber(live.requests_in_flight)} <span class="soft">of {formatNumber(live.request_limit)}</span>
          </>
        }
      >
        <Meter value={live.requests_in_flight} limit={live.request_limit} label="Requests in flight" />
        <span class="detail clipped">{formatCompact(detail.requests)} answered</span>
      </Figure>
    );
  }
  const each = detail.executions > 0 ? detail.requests / detail.executions : null;
  return (
    <Figure label="Requests" value={formatCompact(detail.requests)}>
      <span class="detail clipped">{each === null ? "" : `${formatNumber(each, 1)} per execution`}</span>
    </Figure>
  );
}

function Spend({ detail, live }: PartProps) {
  const input = live?.prompt_tokens ?? detail.prompt_tokens;
  const output = live?.completion_tokens ?? detail.completion_tokens;
  const cost = live?.cost ?? detail.row.cost;
  const total = formatCompact(input === null || output === null ? null : input + output);
  const budgets = (live?.budgets ?? []).filter((budget) => budget.name !== "time");
  return (
    <Figure
      label={cost === null ? "Tokens" : `Spend · ${total} tokens`}
      value={cost === null ? total : formatCost(cost)}
      class="spend-figure"
    >
      {budgets.map((budget) => {
        const limit = budget.name === "cost" ? formatCost(budget.limit) : `${formatCompact(budget.limit)} tokens`;
        return (
          <span key={budget.name} class="budget">
            <Meter value={budget.used ?? 0} limit={budget.limit} label={`Budget of ${limit}`} />
            <span class="detail clipped">of {limit}</span>
          </span>
        );
      })}
      <Tokens parts={{ in: input, out: output }} />
      <Tokens parts={{ cached: detail.cached_tokens, reasoning: detail.reasoning_tokens }} />
    </Figure>
  );
}

function Tokens({ parts }: { parts: Record<string, number | null> }) {
  const known = Object.entries(parts).filter(([, count]) => count !== null && count > 0);
  if (known.length === 0) return null;
  const exact = known.map(([name, count]) => `${formatNumber(count)} ${name}`).join(", ");
  return (
    <span class="detail clipped" title={exact}>
      {known.map(([name, count]) => `${formatCompact(count)} ${name}`).join(" · ")}
    </span>
  );
}

function Machines({ detail, live }: PartProps) {
  const states = Object.entries(live?.machine_states ?? {}).filter(([, count]) => count > 0);
  if (states.length > 0) {
    const total = states.reduce((sum, [, count]) => sum + count, 0);
    return (
      <Figure label="Machines" value={formatNumber(total)}>
        <StackedBar parts={states.map(([state, count]) => ({ state, count }))} total={total} />
        <span class="detail">{states.map(([state, count]) => `${count} ${state}`).join(" · ")}</span>
      </Figure>
    );
  }
  if (!detail.machines) return null;
  return (
    <Figure label="Leases" value={formatNumber(detail.machines.leases_granted)}>
      <span class="detail clipped">of machines, {formatDuration(detail.machines.leased_seconds)}</span>
    </Figure>
  );
}

function Time({ detail, live }: PartProps) {
  const budget = live?.budgets.find((one) => one.name === "time");
  const seconds = live ? Math.max(live.seconds, detail.row.seconds) : detail.row.seconds;
  const left = live?.seconds_left ?? null;
  return (
    <Figure
      label={live ? "Time left" : "Time"}
      value={live ? (left === null ? UNKNOWN : `≈ ${formatDuration(left)}`) : formatDuration(seconds)}
    >
      {budget && (
        <Meter value={budget.used ?? 0} limit={budget.limit} label={`Budget of ${formatDuration(budget.limit)}`} />
      )}
      <span class="detail clipped" title={`Started ${formatTime(detail.row.started)}`}>
        {live
          ? `${formatDuration(seconds)} ${budget ? `of ${formatDuration(budget.limit)}` : "so far"}`
          : counted(detail.sessions, "session")}
      </span>
      <span class="detail clipped">{formatShortTime(detail.row.started)}</span>
    </Figure>
  );
}

function Meter({ value, limit, label }: { value: number; limit: number; label: string }) {
  const fraction = limit > 0 ? Math.min(1, value / limit) : 0;
  return (
    <span
      class="meter"
      role="img"
      aria-label={`${label}: ${formatPercent(fraction)}`}
      title={`${label}: ${formatPercent(fraction)}`}
    >
      <span class={fraction >= 0.9 ? "high" : ""} style={{ width: `${100 * fraction}%` }} />
    </span>
  );
}

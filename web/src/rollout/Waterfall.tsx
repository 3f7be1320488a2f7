import type { ExecutionDetail } from "../api";
import { formatDuration, formatPercent } from "../format";
import { stateColour } from "../states";
import { oneLine } from "../text";
import { activityBars, type Bar, lengthOf, ticks, totals, waterfallRows } from "./timing";

interface WaterfallProps {
  detail: ExecutionDetail;
  selected: number | null;
  onSelect: (step: number) => void;
}

/** When each step happened and how long it took. */
export function Waterfall({ detail, selected, onSelect }: WaterfallProps) {
  const length = lengthOf(detail);
  const rows = waterfallRows(detail.steps);
  const activity = activityBars(detail.activity);
  const all = activity.length > 0 ? activity : rows.flatMap((row) => row.bars);
  return (
    <section class="waterfall" aria-label="Timing">
      <ul class="timing-legend">
        {totals(all).map(({ activity: name, seconds }) => (
          <li key={name}>
            <span class="timing-colour" style={{ background: `var(${stateColour(name)})` }} />
            {name} <strong>{formatDuration(seconds)}</strong>{" "}
            <span class="soft">{formatPercent(seconds / length)}</span>
          </li>
        ))}
      </ul>
      <div class="wf-row wf-axis" aria-hidden="true">
        <span class="wf-name" />
        <span class="wf-track">
          {ticks(length, 4).map((tick) => (
            <span key={tick} class="wf-tick" style={{ left: percent(tick / length) }}>
              {tick === 0 ? "0" : formatDuration(tick)}
            </span>
          ))}
        </span>
        <span class="wf-time" />
      </div>
      {activity.length > 0 && (
        <div class="wf-row wf-all">
          <span class="wf-name">all</span>
          <Track bars={activity} length={length} />
          <span class="wf-time">{formatDuration(length)}</span>
        </div>
      )}
      {rows.map(({ step, bars }) => (
        <button
          type="button"
          key={step.index}
          class={`wf-row${step.error ? " failed" : ""}`}
          aria-current={step.index === selected ? "step" : undefined}
          onClick={() => onSelect(step.index)}
        >
          <span class="wf-name clipped">
            <span class="wf-turn">{step.turn || ""}</span> {step.kind === "tool" ? oneLine(step.name, 30) : step.kind}
          </span>
          <Track bars={bars} length={length} />
          <span class="wf-time">{formatDuration(step.seconds)}</span>
        </button>
      ))}
      {rows.length === 0 && <p class="soft">The times of the steps were not recorded.</p>}
    </section>
  );
}

/** What the rollout did over its whole time, as one line. */
export function ActivityStrip({ detail, selected }: { detail: ExecutionDetail; selected: number | null }) {
  const length = lengthOf(detail);
  const bars = activityBars(detail.activity);
  const at = detail.steps.find((step) => step.index === selected)?.at ?? null;
  const shown = bars.length > 0 ? bars : waterfallRows(detail.steps).flatMap((row) => row.bars);
  if (shown.length === 0) return null;
  return (
    <div
      class="activity-strip"
      role="img"
      aria-label={totals(shown)
        .map((one) => `${one.activity} ${formatDuration(one.seconds)}`)
        .join(", ")}
    >
      <Track bars={shown} length={length} />
      {at !== null && <span class="strip-mark" style={{ left: percent(at / length) }} />}
    </div>
  );
}

function Track({ bars, length }: { bars: Bar[]; length: number }) {
  return (
    <span class="wf-track">
      {bars.map((bar, index) => (
        <span
          key={index}
          class="wf-bar"
          title={`${bar.activity}: ${formatDuration(bar.end - bar.start)}`}
          style={{
            left: percent(bar.start / length),
            width: percent((bar.end - bar.start) / length),
            background: `var(${stateColour(bar.activity)})`,
          }}
        />
      ))}
    </span>
  );
}

function percent(fraction: number): string {
  return `${(Math.min(1, Math.max(0, fraction)) * 100).toFixed(3)}%`;
}

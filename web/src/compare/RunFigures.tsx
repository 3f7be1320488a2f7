import type { PairedDifference, RunComparison, RunRow } from "../api";
import { formatCompact, formatCost, formatDuration, formatInterval, formatNumber, formatScore } from "../format";
import { href, setParams } from "../router";

const WIDTH = 180;
const HEIGHT = 30;
const MARGIN = 8;

interface Axis {
  low: number;
  high: number;
}

/** The runs below each other: scores on one axis, differences from the baseline on another, and the figures. */
export function RunFigures({ comparison, runs }: { comparison: RunComparison; runs: string[] }) {
  const scores = axisOf(
    comparison.runs.map((run) => [run.score, run.interval]),
    null,
  );
  const differences = axisOf(
    comparison.differences.map((each) => [each.difference, each.interval]),
    0,
  );
  const hasCosts = comparison.runs.some((run) => run.cost !== null);
  const hasOthers = comparison.differences.some((each) => each.only_here > 0 || each.only_baseline > 0);
  const byRun = new Map(comparison.differences.map((each) => [each.run, each]));
  return (
    <div class="compare-scroll">
      <table class="compare-runs">
        <thead>
          <tr>
            <th scope="col">Run</th>
            <th scope="col">
              <AxisHead title="Score, 95 % interval" axis={scores} />
            </th>
            <th scope="col">
              <AxisHead title="Difference, 95 % interval" axis={differences} signed />
            </th>
            <th scope="col" class="number" title="Tasks with a higher and with a lower score than in the baseline">
              Better / worse
            </th>
            {hasOthers && (
              <th scope="col" class="number" title="Tasks that only this run has, and that only the baseline has">
                Only here / there
              </th>
            )}
            {hasCosts && (
              <th scope="col" class="number">
                Cost
              </th>
            )}
            <th scope="col" class="number">
              Tokens
            </th>
            <th scope="col" class="number">
              Time
            </th>
            <th scope="col">
              <span class="visually-hidden">Change the comparison</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {comparison.runs.map((run, index) => (
            <FigureRow
              key={run.name}
              run={run}
              isBaseline={index === 0}
              difference={byRun.get(run.name)}
              axes={{ scores, differences }}
              hasOthers={hasOthers}
              hasCosts={hasCosts}
              runs={runs}
            />
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface FigureRowProps {
  run: RunRow;
  isBaseline: boolean;
  difference: PairedDifference | undefined;
  axes: { scores: Axis; differences: Axis };
  hasOthers: boolean;
  hasCosts: boolean;
  runs: string[];
}

function FigureRow({ run, isBaseline, difference, axes, hasOthers, hasCosts, runs }: FigureRowProps) {
  const others = runs.filter((name) => name !== run.name);
  const choose = (chosen: string[]) => setParams({ runs: chosen.join(",") });
  return (
    <tr>
      <th scope="row">
        <a class="clipped" href={href(["run", run.name])} title={run.name}>
          {run.name}
        </a>
        <span class="soft clipped" title={described(run)}>
          {described(run)}
        </span>
        {!run.problem && <span class="soft">{measuredText(run)}</span>}
      </th>
      <td>
        <Whisker value={run.score} interval={run.interval} axis={axes.scores} />
        <span class="compare-value">
          {formatScore(run.score)}
          {run.interval && <span class="soft">{formatInterval(run.interval)}</span>}
        </span>
      </td>
      <td>
        {isBaseline ? (
          <span class="compare-baseline">baseline</span>
        ) : difference === undefined ? (
          <span class="soft">no task in common</span>
        ) : (
          <>
            <Whisker
              value={difference.difference}
              interval={difference.interval}
              axis={axes.differences}
              tone={toneOf(difference)}
            />
            <span class={`compare-value ${toneOf(difference)}`}>
              {signed(difference.difference)}
              <span class="soft">{difference.interval.map((end) => signed(end)).join(" to ")}</span>
            </span>
            <span class="visually-hidden">{verdict(difference)}</span>
          </>
        )}
      </td>
      <td class="number">
        {difference ? (
          <>
            <span class={difference.better > 0 ? "better" : ""}>{formatNumber(difference.better)}</span> /{" "}
            <span class={difference.worse > 0 ? "worse" : ""}>{formatNumber(difference.worse)}</span>
            <div class="soft">of {formatNumber(difference.pairs)}</div>
          </>
        ) : null}
      </td>
      {hasOthers && (
        <td class="number">
          {difference ? `${formatNumber(difference.only_here)} / ${formatNumber(difference.only_baseline)}` : null}
        </td>
      )}
      {hasCosts && <td class="number">{formatCost(run.cost)}</td>}
      <td class="number">{formatCompact(run.tokens)}</td>
      <td class="number">{formatDuration(run.seconds)}</td>
      <td class="compare-buttons">
        {!isBaseline && (
          <button
            type="button"
            class="button"
            onClick={() => choose([run.name, ...others])}
            title="Compare the others with this run"
          >
            Set baseline
          </button>
        )}
        {runs.length > 2 && (
          <button
            type="button"
            class="icon-button"
            aria-label={`Remove ${run.name} from the comparison`}
            title="Remove from the comparison"
            onClick={() => choose(others)}
          >
            ×
          </button>
        )}
      </td>
    </tr>
  );
}

/** What was evaluated, and how: data, scorer and model. */
function described(run: RunRow): string {
  return run.problem || [run.data, run.metric, run.model].filter(Boolean).join(" · ");
}

/** The warning of runs that were not scored by the same scorer; empty if they were. */
export function scorerWarning(runs: RunRow[]): string {
  const scored = runs.filter((run) => run.metric !== "");
  if (new Set(scored.map((run) => run.metric)).size < 2) return "";
  const scorers = scored.map((run) => `${run.name} by ${run.metric}`).join(", ");
  return `Different scorers: ${scorers}. The difference may come from the scorers; paragent rescore scores a run with another one.`;
}

function measuredText({ measured, total }: RunRow): string {
  return `${formatNumber(measured)} of ${formatNumber(total)}${measured < total ? " measured" : ""}`;
}

function AxisHead({ title, axis, signed: withSign = false }: { title: string; axis: Axis; signed?: boolean }) {
  const text = (value: number) => (withSign ? signed(value, 2) : value.toFixed(2));
  return (
    <>
      {title}
      <svg width={WIDTH} height={14} class="compare-axis" aria-hidden="true">
        <text x={0} y={11}>
          {text(axis.low)}
        </text>
        <text x={WIDTH} y={11} text-anchor="end">
          {text(axis.high)}
        </text>
        {withSign && axis.low < 0 && axis.high > 0 && Math.abs(place(0, axis) - WIDTH / 2) < WIDTH / 3 && (
          <text x={place(0, axis)} y={11} text-anchor="middle">
            0
          </text>
        )}
      </svg>
    </>
  );
}

interface WhiskerProps {
  value: number | null;
  interval: [number, number] | null;
  axis: Axis;
  tone?: string;
}

/** A dot with the interval around it. */
function Whisker({ value, interval, axis, tone = "" }: WhiskerProps) {
  const middle = HEIGHT / 2;
  const label = interval ? `95 % interval ${formatInterval(interval)}` : "no interval";
  return (
    <svg width={WIDTH} height={HEIGHT} class={`whisker ${tone}`} role="img" aria-label={label}>
      <title>{label}</title>
      <line class="rail" x1={0} x2={WIDTH} y1={middle} y2={middle} />
      {axis.low < 0 && axis.high > 0 && (
        <line class="zero" x1={place(0, axis)} x2={place(0, axis)} y1={0} y2={HEIGHT} />
      )}
      {interval && (
        <>
          <line class="range" x1={place(interval[0], axis)} x2={place(interval[1], axis)} y1={middle} y2={middle} />
          {interval.map((end) => (
            <line class="range" key={end} x1={place(end, axis)} x2={place(end, axis)} y1={middle - 5} y2={middle + 5} />
          ))}
        </>
      )}
      {value !== null && <circle cx={place(value, axis)} cy={middle} r={5} />}
    </svg>
  );
}

function place(value: number, { low, high }: Axis): number {
  return MARGIN + ((value - low) / (high - low)) * (WIDTH - 2 * MARGIN);
}

/** An axis that holds all values and intervals, with some room, and `include`; without it, scores stay from 0 to 1. */
export function axisOf(values: [number | null, [number, number] | null][], include: number | null): Axis {
  const all = values.flatMap(([value, interval]) => [...(value === null ? [] : [value]), ...(interval ?? [])]);
  if (include !== null) all.push(include);
  if (all.length === 0) return { low: 0, high: 1 };
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const room = Math.max((high - low) * 0.08, 0.01);
  const [first, last] = [Math.floor((low - room) * 100) / 100, Math.ceil((high + room) * 100) / 100];
  if (include !== null) return { low: first, high: last };
  return { low: low >= 0 ? Math.max(0, first) : first, high: high <= 1 ? Math.min(1, last) : last };
}

export function signed(value: number, digits = 3): string {
  const text = Math.abs(value).toFixed(digits);
  if (Number(text) === 0) return text;
  return `${value < 0 ? "−" : "+"}${text}`;
}

/** Whether the interval excludes zero: only then is the difference coloured. */
function toneOf(difference: PairedDifference): string {
  if (difference.interval[0] > 0) return "better";
  return difference.interval[1] < 0 ? "worse" : "";
}

function verdict(difference: PairedDifference): string {
  const tone = toneOf(difference);
  return tone === "" ? "the interval includes zero" : `${tone} than the baseline`;
}

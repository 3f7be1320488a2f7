/** What is under the pointer or the keyboard, as text. */
import type { Timeline } from "../api";
import { formatDuration, formatPercent } from "../format";
import { clock, type TimeScale } from "./scale";
import { IDLE, type Row, type Span, spanAt, type TrackLayout } from "./tracks";

export interface NamedExecution {
  task: string;
  attempt: number;
  status?: string;
}

/** A place on the timeline: a row, and one of its spans. */
export interface Spot {
  row: Row;
  span: number | null;
}

export interface Described {
  state: string;
  where: string;
  task: string;
  when: string;
}

export function describeSpot(
  timeline: Timeline,
  spot: Spot,
  time: number,
  name: (execution: number) => NamedExecution | undefined,
): Described {
  const span = spot.span === null ? undefined : spot.row.track?.spans[spot.span];
  const at = clock(timeline.origin + time);
  if (span === undefined) {
    const state = spot.row.track?.kind === "worker" ? IDLE : "no record";
    return { state, where: spot.row.title, task: "", when: at };
  }
  const [from, to, state, execution] = span;
  const known = execution === 0 ? undefined : name(execution);
  const status = known?.status ? `, ${known.status}` : "";
  const task = known ? `${known.task}, attempt ${known.attempt}${status}` : unknownTask(spot, execution);
  const when = `${clock(timeline.origin + from)} – ${clock(timeline.origin + to)} (${formatDuration(to - from)})`;
  return { state: timeline.states[state] ?? "", where: spot.row.title, task, when };
}

function unknownTask(spot: Spot, execution: number): string {
  if (execution !== 0) return `execution ${execution}`;
  return spot.row.track?.kind === "worker" ? "several rollouts: select a time and zoom in" : "";
}

export function describedText({ state, where, task, when }: Described): string {
  return [where, state, task, when].filter(Boolean).join(", ");
}

/** Move the keyboard's spot to another span or row. */
export function moveSpot(layout: TrackLayout, spot: Spot | null, key: string, scale: TimeScale): Spot | null {
  const rows = layout.tracks.map((index) => layout.rows[index] as Row);
  const first = rows[0];
  if (first === undefined) return null;
  if (spot === null) return { row: first, span: visibleSpan(first, 0, scale) };
  const position = rows.findIndex((row) => row.track === spot.row.track);
  const spans = spot.row.track?.spans ?? [];
  if (key === "ArrowUp" || key === "ArrowDown") {
    const row = rows[Math.min(rows.length - 1, Math.max(0, position + (key === "ArrowDown" ? 1 : -1)))] ?? first;
    const here = spot.span === null ? undefined : spans[spot.span];
    const time = here === undefined ? scale.start : Math.max(scale.start, (here[0] + here[1]) / 2);
    return { row, span: spanAt(row.track?.spans ?? [], time, Number.POSITIVE_INFINITY) };
  }
  if (spot.span === null) return { row: spot.row, span: visibleSpan(spot.row, 0, scale) };
  const wanted =
    key === "Home"
      ? 0
      : key === "End"
        ? spans.length - 1
        : Math.min(spans.length - 1, Math.max(0, spot.span + (key === "ArrowRight" ? 1 : -1)));
  return { row: spot.row, span: visibleSpan(spot.row, wanted, scale) };
}

/** The span with this index, or the nearest one that is in the visible time. */
function visibleSpan(row: Row, wanted: number, scale: TimeScale): number | null {
  const spans = row.track?.spans ?? [];
  let index = wanted;
  while (index < spans.length - 1 && (spans[index] as Span)[1] <= scale.start) index += 1;
  while (index > 0 && (spans[index] as Span)[0] >= scale.end) index -= 1;
  return spans.length === 0 ? null : index;
}

/** The shares of a column, the largest first, as lines of text. */
export function describeShares(timeline: Timeline, column: number): [string, string][] {
  const found = timeline.states
    .map((state, index): [string, number] => [state, timeline.worker_shares[index]?.[column] ?? 0])
    .filter(([, share]) => share >= 0.005);
  const idle = 1 - found.reduce((sum, [, share]) => sum + share, 0);
  if (idle >= 0.005) found.push([IDLE, idle]);
  return found.sort((a, b) => b[1] - a[1]).map(([state, share]) => [state, formatPercent(share)]);
}

/** The time axis: positions of times, and the ticks. Times are seconds after the origin of the timeline. */

export type Interval = [number, number];

/** A part of the axis: time in which a session ran, or a gap between two sessions. */
export interface Segment {
  from: number;
  to: number;
  x: number;
  width: number;
  gap: boolean;
}

export interface Tick {
  x: number;
  label: string;
}

/** Gaps between sessions are at most this wide, so that a run that was continued the next day can be read. */
export const GAP_WIDTH = 36;
const TICK_DISTANCE = 92;
const STEPS = [
  0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200,
  86400,
];

export class TimeScale {
  readonly segments: Segment[];

  constructor(
    readonly start: number,
    readonly end: number,
    sessions: Interval[],
    readonly left: number,
    readonly width: number,
  ) {
    this.segments = makeSegments(start, end, sessions, left, Math.max(1, width));
  }

  /** The position of a time. Times outside are at the edge. */
  x(time: number): number {
    const clamped = Math.min(this.end, Math.max(this.start, time));
    const segment = this.segments.find((each) => clamped <= each.to) ?? this.segments[this.segments.length - 1];
    if (segment === undefined) return this.left;
    const length = segment.to - segment.from;
    return segment.x + (length > 0 ? (Math.max(0, clamped - segment.from) / length) * segment.width : 0);
  }

  /** The time at a position. */
  time(x: number): number {
    const last = this.segments[this.segments.length - 1];
    const segment = this.segments.find((each) => x <= each.x + each.width) ?? last;
    if (segment === undefined || segment.width === 0) return this.start;
    const part = Math.min(1, Math.max(0, (x - segment.x) / segment.width));
    return segment.from + part * (segment.to - segment.from);
  }

  /** How much of an interval was not in a gap, in seconds. */
  seconds(from: number, to: number): number {
    return this.segments.reduce((sum, each) => sum + (each.gap ? 0 : overlap(from, to, each.from, each.to)), 0);
  }

  get gaps(): Segment[] {
    return this.segments.filter((segment) => segment.gap);
  }
}

export function overlap(from: number, to: number, other: number, otherEnd: number): number {
  return Math.max(0, Math.min(to, otherEnd) - Math.max(from, other));
}

function makeSegments(start: number, end: number, sessions: Interval[], left: number, width: number): Segment[] {
  const parts: Omit<Segment, "x" | "width">[] = [];
  let now = start;
  let previous = Number.NEGATIVE_INFINITY;
  for (const [from, to] of [...sessions].sort((a, b) => a[0] - b[0])) {
    const gap: Interval = [Math.max(start, previous), Math.min(end, from)];
    if (Number.isFinite(previous) && gap[1] - gap[0] > ((end - start) * GAP_WIDTH) / width) {
      if (gap[0] > now) parts.push({ from: now, to: gap[0], gap: false });
      parts.push({ from: gap[0], to: gap[1], gap: true });
      now = gap[1];
    }
    previous = Math.max(previous, to);
  }
  if (end > now || parts.length === 0) parts.push({ from: now, to: end, gap: false });
  const gaps = parts.filter((part) => part.gap).length;
  const active = parts.reduce((sum, part) => sum + (part.gap ? 0 : part.to - part.from), 0);
  const gapWidth = active > 0 ? Math.min(GAP_WIDTH, width / (2 * Math.max(1, gaps))) : width / Math.max(1, gaps);
  const scale = active > 0 ? (width - gaps * gapWidth) / active : 0;
  let x = left;
  return parts.map((part) => {
    const wide = part.gap ? gapWidth : active > 0 ? (part.to - part.from) * scale : width;
    const segment = { ...part, x, width: wide };
    x += wide;
    return segment;
  });
}

/** Ticks at round times of day, in the reader's time zone. */
export function ticks(scale: TimeScale, origin: number): Tick[] {
  const found: Tick[] = [];
  for (const segment of scale.segments) {
    if (segment.gap || segment.width <= 0 || segment.to <= segment.from) continue;
    const least = ((segment.to - segment.from) / segment.width) * TICK_DISTANCE;
    const step = STEPS.find((each) => each >= least) ?? Math.ceil(least / 86400) * 86400;
    const zone = new Date((origin + segment.from) * 1000).getTimezoneOffset() * 60;
    const first = Math.ceil((origin + segment.from - zone) / step - 1e-9);
    for (let count = 0; count < 200; count += 1) {
      const epoch = (first + count) * step + zone;
      if (epoch - origin > segment.to) break;
      const x = scale.x(epoch - origin);
      if (x > scale.left + scale.width - 20) break;
      found.push({ x, label: clock(epoch, step) });
    }
  }
  return found;
}

/** The time of day, as precise as a step needs. */
export function clock(epoch: number, step = 1): string {
  const date = new Date(Math.round(epoch * 1000));
  if (step >= 86400) return date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  const parts = [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => String(part).padStart(2, "0"));
  const text = (step >= 60 ? parts.slice(0, 2) : parts).join(":");
  return step >= 1
    ? text
    : `${text}.${String(date.getMilliseconds())
        .padStart(3, "0")
        .slice(0, step < 0.1 ? 2 : 1)}`;
}

/** A selected part of the axis from where dragging began and where the pointer is; null if it is too short. */
export function brushed(scale: TimeScale, anchor: number, x: number): Interval | null {
  if (Math.abs(anchor - x) < 4) return null;
  const right = scale.left + scale.width;
  const [from, to] = [anchor, x].map((each) => Math.min(right, Math.max(scale.left, each))).sort((a, b) => a - b);
  if (from === undefined || to === undefined || from === to) return null;
  return [scale.time(from), scale.time(to)];
}

/** `from` and `to` of the address: seconds since the epoch. An open end is the end of the timeline. */
export function readInterval(from: string | null, to: string | null): [number, number] | null {
  if (!from && !to) return null;
  const first = from ? Number(from) : Number.NEGATIVE_INFINITY;
  const last = to ? Number(to) : Number.POSITIVE_INFINITY;
  return Number.isNaN(first) || Number.isNaN(last) || last <= first ? null : [first, last];
}

/** A time of the address, to the hundredth of a second. */
export function writeTime(epoch: number): string {
  return String(Math.round(epoch * 100) / 100);
}

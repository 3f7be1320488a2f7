/** The order, the places and the figures of tracks. */
import type { Timeline, Track } from "../api";
import { overlap, type TimeScale } from "./scale";

export type Order = "name" | "busy";
export type Span = Track["spans"][number];

/** One line of the drawing: a heading, or a track. */
export interface Row {
  y: number;
  height: number;
  label: string;
  /** The whole name, for the tooltip and for screen readers. */
  title: string;
  track: Track | null;
}

export interface TrackLayout {
  rows: Row[];
  height: number;
  /** The indexes of rows with a track. */
  tracks: number[];
}

export const HEADING_HEIGHT = 26;
export const ROW_HEIGHT = 20;
const LEAST_ROW_HEIGHT = 1.25;
/** Rows lower than this have no label. */
export const LABEL_HEIGHT = 11;
const KINDS = ["machine", "worker"];

/** Place machines, then the places of workers, below each other; with `fit`, as low as needed for this height. */
export function layoutTracks(tracks: Track[], order: Order, fit: number | null): TrackLayout {
  const groups = KINDS.map((kind) => tracks.filter((track) => track.kind === kind)).filter((group) => group.length > 0);
  const available = (fit ?? 0) - groups.length * HEADING_HEIGHT;
  const share = available / tracks.length;
  const fitted = Math.max(LEAST_ROW_HEIGHT, Math.min(ROW_HEIGHT, share < 4 ? share : Math.floor(share)));
  const height = fit === null ? ROW_HEIGHT : fitted;
  const rows: Row[] = [];
  let y = 0;
  const add = (row: Omit<Row, "y">) => {
    rows.push({ ...row, y });
    y += row.height;
  };
  for (const group of groups) {
    const heading = groupHeading(group);
    add({ height: HEADING_HEIGHT, label: heading, title: heading, track: null });
    const short = shortNames(group);
    for (const track of sortTracks(group, order)) {
      const place = track.kind === "worker" ? ` · ${track.slot + 1}` : "";
      const label = `${short(track.name)}${place}`;
      add({ height, label, title: trackTitle(track), track });
    }
  }
  return { rows, height: y, tracks: rows.flatMap((row, index) => (row.track ? [index] : [])) };
}

export function trackTitle(track: Track): string {
  return track.kind === "worker" ? `worker ${track.name}, place ${track.slot + 1}` : `machine ${track.name}`;
}

function groupHeading(group: Track[]): string {
  if (group[0]?.kind === "machine") return group.length === 1 ? "1 machine" : `${group.length} machines`;
  const workers = new Set(group.map((track) => track.name)).size;
  const names = workers === 1 ? "1 worker" : `${workers} workers`;
  return group.length === workers ? names : `${names} with ${group.length} places`;
}

/** Names are `host:pid`; the host is left out where all are the same. */
function shortNames(group: Track[]): (name: string) => string {
  const hosts = new Set(group.map((track) => track.name.slice(0, track.name.lastIndexOf(":") + 1)));
  const [host = ""] = hosts;
  return hosts.size === 1 && host !== "" ? (name) => name.slice(host.length) : (name) => name;
}

const collator = new Intl.Collator("en", { numeric: true });

function sortTracks(group: Track[], order: Order): Track[] {
  const byName = (a: Track, b: Track) => collator.compare(a.name, b.name) || a.slot - b.slot;
  return [...group].sort(order === "busy" ? (a, b) => a.busy - b.busy || byName(a, b) : byName);
}

/** The row at a vertical position. */
export function rowAt(layout: TrackLayout, y: number): Row | null {
  let low = 0;
  let high = layout.rows.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    const row = layout.rows[middle];
    if (row === undefined) return null;
    if (y < row.y) high = middle - 1;
    else if (y >= row.y + row.height) low = middle + 1;
    else return row;
  }
  return null;
}

/** The index of the first span that ends after a time. */
export function firstSpanAfter(spans: Span[], time: number): number {
  let low = 0;
  let high = spans.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((spans[middle] as Span)[1] > time) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The span at a time; with `tolerance`, the nearest that is not further away, so that short ones can be hit. */
export function spanAt(spans: Span[], time: number, tolerance = 0): number | null {
  const index = firstSpanAfter(spans, time);
  const here = spans[index];
  if (here !== undefined && here[0] <= time) return index;
  const before = spans[index - 1];
  const after = here === undefined ? Number.POSITIVE_INFINITY : here[0] - time;
  const since = before === undefined ? Number.POSITIVE_INFINITY : time - before[1];
  if (spans.length === 0 || Math.min(after, since) > tolerance) return null;
  return after < since ? index : index - 1;
}

/** What a worker's place does while it executes nothing. Machines have states for all of their time. */
export const IDLE = "idle";

export interface StateShare {
  state: string;
  share: number;
}

/** The shares of the states in the visible time of a track; the time without a span of a worker is idle. */
export function trackShares(timeline: Timeline, track: Track, scale: TimeScale): StateShare[] {
  const seconds = new Array<number>(timeline.states.length).fill(0);
  for (const [from, to, state] of track.spans) seconds[state] = (seconds[state] ?? 0) + scale.seconds(from, to);
  const total = scale.seconds(scale.start, scale.end);
  if (total <= 0) return [];
  const shares = timeline.states.map((state, index) => ({ state, share: (seconds[index] ?? 0) / total }));
  return sortShares(shares, track.kind);
}

/** The shares of the states in the visible time of all machines or of all places of workers; the largest first. */
export function kindShares(timeline: Timeline, kind: "machine" | "worker", scale: TimeScale): StateShare[] {
  const byState = kind === "machine" ? timeline.machine_shares : timeline.worker_shares;
  if (byState.length === 0) return [];
  const lengths = timeline.columns.map(([from, to]) => overlap(from, to, scale.start, scale.end));
  const total = lengths.reduce((sum, length) => sum + length, 0);
  if (total <= 0) return [];
  const shares = timeline.states.map((state, index) => {
    const seconds = (byState[index] ?? []).reduce((sum, share, column) => sum + share * (lengths[column] ?? 0), 0);
    return { state, share: seconds / total };
  });
  return sortShares(shares, kind);
}

/** The column of `Timeline.columns` that has a time. */
export function columnAt(timeline: Timeline, time: number): number | null {
  const column = timeline.columns.findIndex(([from, to]) => from <= time && time < to);
  return column < 0 ? null : column;
}

function sortShares(shares: StateShare[], kind: string): StateShare[] {
  const rest = 1 - shares.reduce((sum, each) => sum + each.share, 0);
  const all = kind === "worker" && rest > 0.0005 ? [...shares, { state: IDLE, share: rest }] : shares;
  return all.filter((each) => each.share > 0).sort((a, b) => b.share - a.share);
}

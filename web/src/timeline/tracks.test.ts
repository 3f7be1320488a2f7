import { expect, test } from "vitest";
import type { Timeline, Track } from "../api";
import { TimeScale } from "./scale";
import { columnAt, kindShares, layoutTracks, rowAt, spanAt, trackShares } from "./tracks";

const STATES = ["generating", "acting", "free", "leased"];

function track(kind: string, name: string, slot = 0, busy = 0.5, spans: Track["spans"] = []): Track {
  return { kind, name, slot, busy, spans };
}

function timeline(tracks: Track[]): Timeline {
  return {
    origin: 0,
    start: 0,
    end: 100,
    states: STATES,
    tracks,
    hidden: 0,
    machine_utilisation: null,
    worker_utilisation: null,
    sessions: [[0, 100]],
    columns: [
      [0, 50],
      [50, 100],
    ],
    machine_shares: [],
    worker_shares: [
      [0.5, 1],
      [0.25, 0],
      [0, 0],
      [0, 0],
    ],
  };
}

const some = [
  track("worker", "host:20", 1, 0.1),
  track("worker", "host:9", 0, 0.9),
  track("worker", "host:20", 0, 0.4),
  track("machine", "vm-10", 0, 0.2),
  track("machine", "vm-9", 0, 0.8),
];

test("machines first, then workers, numbers in their order", () => {
  const labels = layoutTracks(some, "name", null).rows.map((row) => row.label);
  expect(labels).toEqual(["2 machines", "vm-9", "vm-10", "2 workers with 3 places", "9 · 1", "20 · 1", "20 · 2"]);
});

test("the least busy first", () => {
  const rows = layoutTracks(some, "busy", null).rows;
  expect(rows.map((row) => row.track?.busy).filter((busy) => busy !== undefined)).toEqual([0.2, 0.8, 0.1, 0.4, 0.9]);
});

test("hosts are shown if there are several", () => {
  const rows = layoutTracks([track("worker", "a:1"), track("worker", "b:1")], "name", null).rows;
  expect(rows.map((row) => row.label)).toEqual(["2 workers", "a:1 · 1", "b:1 · 1"]);
});

test("rows follow each other, and a position finds its row", () => {
  const layout = layoutTracks(some, "name", null);
  for (const row of layout.rows) {
    expect(rowAt(layout, row.y)).toBe(row);
    expect(rowAt(layout, row.y + row.height - 0.5)).toBe(row);
  }
  expect(rowAt(layout, layout.height)).toBeNull();
  expect(rowAt(layout, -1)).toBeNull();
  expect(layout.tracks.length).toBe(some.length);
});

test("many tracks fit the height, as far as they can be seen", () => {
  const many = Array.from({ length: 100 }, (_, index) => track("machine", `vm-${index}`));
  expect(layoutTracks(many, "name", 426).height).toBeLessThanOrEqual(426);
  const tooMany = Array.from({ length: 30 }, () => many).flat();
  expect(layoutTracks(tooMany, "name", 426).rows[1]?.height).toBeGreaterThan(1);
});

test("the span at a time", () => {
  const spans: Track["spans"] = [
    [0, 10, 0, 1],
    [20, 30, 1, 2],
  ];
  expect(spanAt(spans, 5)).toBe(0);
  expect(spanAt(spans, 10.5)).toBeNull();
  expect(spanAt(spans, 19, 2)).toBe(1);
  expect(spanAt(spans, 12, 2)).toBe(0);
  expect(spanAt(spans, 40)).toBeNull();
  expect(spanAt([], 40, Number.POSITIVE_INFINITY)).toBeNull();
});

test("shares of states, with the rest of a worker as idle", () => {
  const worker = track("worker", "w", 0, 0.5, [
    [-10, 40, 0, 1],
    [40, 50, 1, 1],
  ]);
  const scale = new TimeScale(0, 100, [[0, 100]], 0, 100);
  expect(trackShares(timeline([worker]), worker, scale)).toEqual([
    { state: "idle", share: 0.5 },
    { state: "generating", share: 0.4 },
    { state: "acting", share: 0.1 },
  ]);
});

test("shares of all workers in the visible columns", () => {
  const whole = new TimeScale(0, 100, [[0, 100]], 0, 100);
  expect(kindShares(timeline([]), "worker", whole)).toEqual([
    { state: "generating", share: 0.75 },
    { state: "acting", share: 0.125 },
    { state: "idle", share: 0.125 },
  ]);
  const end = new TimeScale(60, 100, [[0, 100]], 0, 100);
  expect(kindShares(timeline([]), "worker", end)).toEqual([{ state: "generating", share: 1 }]);
  expect(kindShares(timeline([]), "machine", whole)).toEqual([]);
});

test("the column of a time", () => {
  expect([0, 49.9, 50, 100].map((time) => columnAt(timeline([]), time))).toEqual([0, 0, 1, null]);
});

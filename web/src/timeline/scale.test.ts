import { expect, test } from "vitest";
import { brushed, GAP_WIDTH, readInterval, TimeScale, ticks, writeTime } from "./scale";

test("time without gaps is linear", () => {
  const scale = new TimeScale(10, 110, [[10, 110]], 100, 1000);
  expect(scale.x(10)).toBe(100);
  expect(scale.x(60)).toBe(600);
  expect(scale.time(600)).toBe(60);
  expect(scale.x(-5)).toBe(100);
  expect(scale.x(500)).toBe(1100);
});

test("a long gap between sessions is narrow, and its time is not counted", () => {
  const scale = new TimeScale(0, 36200, [[0, 100], [36100, 36200]], 0, 1000); // biome-ignore format: pairs
  expect(scale.gaps.map((gap) => [gap.from, gap.to, gap.width])).toEqual([[100, 36100, GAP_WIDTH]]);
  expect(scale.x(100)).toBeCloseTo((1000 - GAP_WIDTH) / 2);
  expect(scale.x(36100)).toBeCloseTo((1000 + GAP_WIDTH) / 2);
  expect(scale.seconds(0, 36200)).toBeCloseTo(200);
  for (const time of [0, 50, 99, 20000, 36100, 36150, 36200]) expect(scale.time(scale.x(time))).toBeCloseTo(time, 4);
});

test("a short gap keeps its length", () => {
  expect(new TimeScale(0, 100, [[0, 50], [51, 100]], 0, 1000).gaps).toEqual([]); // biome-ignore format: pairs
});

test("a visible part inside one session has no gap", () => {
  const sessions: [number, number][] = [
    [0, 100],
    [36100, 36200],
  ];
  const scale = new TimeScale(20, 80, sessions, 0, 600);
  expect(scale.gaps).toEqual([]);
  expect(scale.x(50)).toBeCloseTo(300);
});

test("a visible part that lies in a gap fills the axis", () => {
  const sessions: [number, number][] = [
    [0, 100],
    [36100, 36200],
  ];
  const scale = new TimeScale(200, 300, sessions, 0, 600);
  expect(scale.x(200)).toBe(0);
  expect(scale.x(300)).toBe(600);
});

test("ticks do not overlap and stay inside", () => {
  for (const length of [0.5, 7, 60, 3600, 86400 * 3]) {
    const scale = new TimeScale(0, length, [[0, length]], 150, 900);
    const found = ticks(scale, 1_760_000_000);
    expect(found.length).toBeGreaterThan(1);
    for (const [index, tick] of found.entries()) {
      expect(tick.x).toBeGreaterThanOrEqual(150);
      expect(tick.x - (found[index - 1]?.x ?? Number.NEGATIVE_INFINITY)).toBeGreaterThan(60);
    }
  }
});

test("a brush works in both directions, is cut at the edges, and a click is none", () => {
  const scale = new TimeScale(0, 100, [], 100, 1000);
  expect(brushed(scale, 200, 300)).toEqual([10, 20]);
  expect(brushed(scale, 300, 200)).toEqual([10, 20]);
  expect(brushed(scale, 1050, 5000)).toEqual([95, 100]);
  expect(brushed(scale, 200, 202)).toBeNull();
});

test("an interval of the address", () => {
  expect(readInterval("10", "20.5")).toEqual([10, 20.5]);
  expect(readInterval(null, "20")).toEqual([Number.NEGATIVE_INFINITY, 20]);
  expect(readInterval(null, null)).toBeNull();
  expect(readInterval("20", "10")).toBeNull();
  expect(readInterval("x", "10")).toBeNull();
  expect(writeTime(1763394000.12345)).toBe("1763394000.12");
});

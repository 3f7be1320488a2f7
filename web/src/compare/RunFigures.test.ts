import { expect, test } from "vitest";
import { axisOf, signed } from "./RunFigures";

test("an axis holds all values and intervals", () => {
  const axis = axisOf([[0.5, [0.4, 0.6]], [0.7, null], [null, null]], null); // biome-ignore format: pairs
  expect(axis.low).toBeLessThan(0.4);
  expect(axis.high).toBeGreaterThan(0.7);
  expect(axisOf([], null)).toEqual({ low: 0, high: 1 });
});

test("scores from 0 to 1 stay there; differences have zero on their axis", () => {
  expect(axisOf([[0, [0, 0]], [1, [1, 1]]], null)).toEqual({ low: 0, high: 1 }); // biome-ignore format: pairs
  const differences = axisOf([[0.2, [0.1, 0.3]]], 0);
  expect(differences.low).toBeLessThan(0);
  expect(differences.high).toBeGreaterThan(0.3);
  expect(axisOf([[3, [2, 4]]], null).high).toBeGreaterThan(4);
});

test("differences have a sign unless they are zero", () => {
  expect([0.25, -0.25, 0, -0.0001].map((value) => signed(value))).toEqual(["+0.250", "−0.250", "0.000", "0.000"]);
});

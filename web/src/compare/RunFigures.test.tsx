import { cleanup, render, screen } from "@testing-library/preact";
import { afterEach, expect, test } from "vitest";
import type { PairedDifference, RunRow } from "../api";
import { axisOf, RunFigures, scorerWarning, signed } from "./RunFigures";

afterEach(cleanup);

function run(name: string, metric: string): RunRow {
  const figures = { total: 45, done: 45, measured: 45, cut: 0, seconds: 1, started: 0, changed: 0 };
  const score = { score: 0.5, interval: [0.4, 0.6] as [number, number], score_of_all: 0.5, cost: null, tokens: null };
  const words = { mode: "math", engine: "local", state: "complete", problem: "", origin: "", judge: "" };
  return { name, metric, model: "m", data: "gsm.jsonl", statuses: {}, verdicts: {}, ...figures, ...score, ...words };
}

const DIFFERENCE: PairedDifference = {
  run: "b",
  pairs: 45,
  mean: 0.7,
  baseline_mean: 0.5,
  difference: 0.178,
  interval: [0.068, 0.282],
  better: 8,
  worse: 0,
  only_here: 0,
  only_baseline: 0,
};

test("runs have their data and scorer, and differences their interval in numbers", () => {
  const comparison = { runs: [run("a", "math"), run("b", "math")], differences: [DIFFERENCE], flips: [], common: 45 };
  const { container } = render(<RunFigures comparison={comparison} runs={["a", "b"]} />);
  expect(screen.getAllByText("gsm.jsonl · math · m")).toHaveLength(2);
  expect(screen.getByText("+0.068 to +0.282")).toBeTruthy();
  expect(container.querySelector("td.number .better")?.textContent).toBe("8");
  expect(container.querySelector(".worse")).toBeNull();
});

test("columns that would be empty are left out", () => {
  const comparison = { runs: [run("a", "math"), run("b", "math")], differences: [DIFFERENCE], flips: [], common: 45 };
  const { rerender } = render(<RunFigures comparison={comparison} runs={["a", "b"]} />);
  expect(screen.queryByText("Only here / there")).toBeNull();
  expect(screen.queryByText("Cost")).toBeNull();
  const others = { ...comparison, differences: [{ ...DIFFERENCE, only_here: 2 }] };
  rerender(<RunFigures comparison={others} runs={["a", "b"]} />);
  expect(screen.getByText("Only here / there")).toBeTruthy();
  expect(screen.getByText("2 / 0")).toBeTruthy();
});

test("runs of different scorers have a warning", () => {
  expect(scorerWarning([run("a", "math"), run("b", "math"), run("c", "")])).toBe("");
  expect(scorerWarning([run("a", "math"), run("b", "llm_judge")])).toContain("a by math, b by llm_judge");
});

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

import { describe, expect, it } from "vitest";
import type { RunRow } from "./api";
import { scoreRange, selectRuns } from "./runs";

const run = (values: Partial<RunRow>): RunRow => ({
  name: "a",
  mode: "math",
  model: "m",
  engine: "local",
  state: "complete",
  total: 10,
  done: 10,
  statuses: { completed: 10 },
  score: 0.5,
  interval: [0.4, 0.6],
  measured: 10,
  score_of_all: 0.5,
  cut: 0,
  cost: null,
  tokens: null,
  seconds: 1,
  started: 1,
  changed: 1,
  problem: "",
  origin: "",
  ...values,
});

describe("selectRuns", () => {
  const runs = [
    run({ name: "b", score: null, done: 5 }),
    run({ name: "a", score: 0.2, model: "Large" }),
    run({ name: "c", score: 0.9, engine: "ray", done: 1 }),
  ];
  const names = (...selection: [string, Parameters<typeof selectRuns>[2]]) =>
    selectRuns(runs, ...selection).map((one) => one.name);

  it("finds words in names, models, engines and states", () => {
    expect(names("large", null)).toEqual(["a"]);
    expect(names("RAY complete", null)).toEqual(["c"]);
    expect(names("", null)).toEqual(["b", "a", "c"]);
  });

  it("sorts with unknown values last", () => {
    expect(names("", { column: "score", descending: true })).toEqual(["c", "a", "b"]);
    expect(names("", { column: "score", descending: false })).toEqual(["a", "c", "b"]);
    expect(names("", { column: "name", descending: true })).toEqual(["c", "b", "a"]);
    expect(names("", { column: "progress", descending: false })).toEqual(["c", "b", "a"]);
  });

  it("leaves the given list as it is", () => {
    selectRuns(runs, "", { column: "name", descending: false });
    expect(runs.map((one) => one.name)).toEqual(["b", "a", "c"]);
  });
});

it("shows scores above 1 on a longer bar", () => {
  expect(scoreRange([run({})])).toEqual([0, 1]);
  expect(scoreRange([run({ score: 3, interval: [2, 4] })])).toEqual([0, 4]);
});

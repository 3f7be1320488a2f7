import { describe, expect, it } from "vitest";
import type { RunRow } from "./api";
import { outcomeCounts, outcomeParts, scoreRange, selectRuns, stateWarning } from "./runs";

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
  data: "gsm8k.jsonl",
  metric: "math",
  judge: "",
  verdicts: {},
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

describe("outcomes", () => {
  it("tell right from wrong among the completed", () => {
    const counts = outcomeCounts(run({ statuses: { completed: 8, failed: 2 }, verdicts: { right: 5, wrong: 2 } }));
    expect(outcomeParts(counts).filter((part) => part.count > 0)).toEqual([
      { state: "right", count: 5 },
      { state: "wrong", count: 2 },
      { state: "completed", count: 1 },
      { state: "failed", count: 2 },
    ]);
  });

  it("of a run that ended with failures are not those of one without", () => {
    expect(stateWarning(run({}))).toBeUndefined();
    expect(stateWarning(run({ statuses: { completed: 9, "timed out": 1 } }))).toBe("orange");
    expect(stateWarning(run({ total: 30, statuses: { completed: 4, failed: 26 } }))).toBe("red");
    expect(stateWarning(run({ state: "stopped", total: 120, statuses: { completed: 2, failed: 12 } }))).toBe("red");
    expect(stateWarning(run({ state: "stopped", done: 9 }))).toBeUndefined();
    expect(stateWarning(run({ state: "stopped", done: 0, statuses: { infrastructure: 10 } }))).toBe("red");
    expect(stateWarning(run({ state: "running", statuses: { failed: 9 } }))).toBeUndefined();
  });
});

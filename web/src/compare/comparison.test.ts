import { afterEach, expect, test, vi } from "vitest";
import type { RunComparison, RunRow } from "../api";
import { settings } from "../source";
import {
  isBetter,
  isWorse,
  largestChange,
  loadComparison,
  mergePairs,
  reversed,
  type TaskScores,
  taskScores,
} from "./comparison";

function run(name: string): RunRow {
  return {
    name,
    mode: "qa",
    model: "m",
    engine: "local",
    state: "complete",
    total: 2,
    done: 2,
    statuses: { completed: 2 },
    score: 0.5,
    interval: [0.2, 0.8],
    measured: 2,
    score_of_all: 0.5,
    cut: 0,
    cost: null,
    tokens: null,
    seconds: 1,
    started: 0,
    changed: 0,
    problem: "",
    origin: "",
    data: "gsm8k.jsonl",
    metric: "math",
    judge: "",
    verdicts: {},
  };
}

function pair(a: string, b: string, difference: number): RunComparison {
  return {
    runs: [run(a), run(b)],
    differences: [
      {
        run: b,
        pairs: 2,
        mean: 0.5 + difference,
        baseline_mean: 0.5,
        difference,
        interval: [difference - 0.1, difference + 0.2],
        better: 3,
        worse: 1,
        only_here: 5,
        only_baseline: 6,
      },
    ],
    flips: [{ task: "t1", question: "q", scores: [0, 1], executions: [1, 2], ids: ["t1", "t1"] }],
    common: 2,
  };
}

afterEach(() => {
  settings.static = false;
  vi.unstubAllGlobals();
});

test("the other run as the baseline", () => {
  const [one] = reversed(pair("a", "b", 0.25)).differences;
  expect(one).toMatchObject({ run: "a", difference: -0.25, better: 1, worse: 3, only_here: 6, only_baseline: 5 });
  expect(one?.interval).toEqual([-0.45, -0.15]);
  expect(reversed(reversed(pair("a", "b", 0.25)))).toEqual(pair("a", "b", 0.25));
});

test("changes against the baseline", () => {
  const flip = { task: "t", question: "", scores: [0.5, 1, null, 0], executions: [1, 2, 3, 4], ids: [] };
  expect([isBetter(flip), isWorse(flip), largestChange(flip)]).toEqual([true, true, 0.5]);
  const unknown = { ...flip, scores: [null, 1, 0, 1] };
  expect([isBetter(unknown), isWorse(unknown), largestChange(unknown)]).toEqual([false, false, 0]);
});

test("an export merges the files of pairs, which are in the order of their names", async () => {
  settings.static = true;
  const rows = (score: number, status = "completed") => ({
    task: ["t1", "t2"],
    question: ["q", "r"],
    status: [status, "completed"],
    number: [7, 8],
    score: [status === "completed" ? score : null, 1],
  });
  const files: Record<string, unknown> = {
    "data/compare/a%2Cb.json": pair("a", "b", -0.5),
    "data/compare/b%2Cc.json": pair("b", "c", -0.25),
    "data/runs/a/rollouts.json": rows(0, "timed out"),
    "data/runs/b/rollouts.json": rows(1),
    "data/runs/c/rollouts.json": rows(0.5),
  };
  vi.stubGlobal("fetch", async (address: string) =>
    address in files ? Response.json(files[address]) : new Response("", { status: 404 }),
  );
  const merged = await loadComparison(["b", "a", "c"]);
  expect(merged.runs.map((each) => each.name)).toEqual(["b", "a", "c"]);
  expect(merged.differences.map((each) => [each.run, each.difference])).toEqual([
    ["a", 0.5],
    ["c", -0.25],
  ]);
  expect(merged.flips).toEqual([
    { task: "t1", question: "q", scores: [1, 0, 0.5], executions: [7, 7, 7], ids: ["t1", "t1", "t1"] },
  ]);
  expect(merged.common).toBe(2);
});

test("tasks with other ids in other runs, and other tasks with the same id", () => {
  const named = (task: string, question: string, score: number): TaskScores =>
    new Map([[task, { score, question, execution: 1 }]]);
  const flip = { task: "a", question: "q", scores: [0, 1], executions: [1, 1], ids: ["a", "1"] };
  const first: RunComparison = { ...pair("x", "y", 1), flips: [flip] };
  const second: RunComparison = { ...pair("x", "z", 0), flips: [] };
  const scores = [named("a", "q", 0), named("1", "q", 1), named("a", "another question", 1)];
  expect(mergePairs([first, second], scores).flips[0]).toMatchObject({ scores: [0, 1, null], ids: ["a", "1", ""] });
  expect(reversed(first).flips[0]).toMatchObject({ task: "1", ids: ["1", "a"] });
});

test("the score of a task is the mean of its attempts", () => {
  const rows = {
    task: ["t", "t", "t", "u", "v"],
    question: ["q", "q", "q", "r", "s"],
    status: ["failed", "completed", "infrastructure", "pending", "unscored"],
    number: [1, 2, 3, null, 4],
    score: [null, 1, null, null, null],
  };
  const scores = taskScores(rows as unknown as Parameters<typeof taskScores>[0]);
  expect(scores.get("t")).toEqual({ score: 0.5, question: "q", execution: 1 });
  expect(scores.get("u")).toEqual({ score: null, question: "r", execution: null });
  expect(scores.get("v")?.score).toBeNull();
});

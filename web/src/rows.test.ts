import { beforeEach, describe, expect, it } from "vitest";
import type { RolloutRows } from "./api";
import { EVERYTHING, matchesMessage, type RolloutFilter, type RolloutSort, RolloutTable } from "./rows";

function rows(...given: Partial<Record<keyof RolloutRows, unknown>>[]): RolloutRows {
  const defaults: Record<string, unknown> = {
    question: "",
    reference: "",
    number: null,
    status: "pending",
    score: null,
    ending: "",
    kind: "",
    error: "",
    answer: "",
    turns: 0,
    tool_calls: 0,
    tokens: null,
    seconds: 0,
    waited: 0,
    started: 0,
    ended: 0,
    worker: "",
    machine: "",
    executions: 0,
    attempt: 1,
  };
  const full = given.map((row, index) => ({ position: index + 1, task: `task-${index + 1}`, ...defaults, ...row }));
  const columns = Object.fromEntries(
    [...Object.keys(defaults), "position", "task"].map((name) => [
      name,
      full.map((row) => (row as Record<string, unknown>)[name]),
    ]),
  );
  return { next: null, last: given.length, ...columns } as unknown as RolloutRows;
}

function tasks(table: RolloutTable, filter: RolloutFilter, sort: RolloutSort | null = null): string[] {
  return [...table.select(filter, sort)].map((row) => table.text("task", row));
}

describe("RolloutTable", () => {
  let table: RolloutTable;
  beforeEach(() => {
    table = new RolloutTable();
    table.add(
      rows(
        { task: "b", status: "completed", score: 1, answer: "Paris", tokens: 300, started: 100, ended: 110 },
        {
          task: "a",
          status: "failed",
          score: 0,
          kind: "endpoint",
          error: "HTTP 503 from 'x'",
          tokens: 100,
          ended: 150,
        },
        { task: "c", status: "completed", score: 0.25, question: "Capital of <b>France</b>?", started: 90, ended: 300 },
        { task: "d" },
      ),
    );
  });

  it("keeps the order of the tasks without a sort", () => {
    expect(tasks(table, EVERYTHING)).toEqual(["b", "a", "c", "d"]);
  });

  it("tells solved rollouts from executed ones that are not", () => {
    table.add({ ...rows({ task: "a", number: 7, status: "failed" }), last: 7 });
    expect(tasks(table, { ...EVERYTHING, score: "solved" })).toEqual(["b"]);
    expect(tasks(table, { ...EVERYTHING, score: "unsolved" })).toEqual(["a"]);
  });

  it("counts outcomes and filters by them", () => {
    expect([...table.outcomeCounts()].sort()).toEqual([
      ["failed", 1],
      ["partly right", 1],
      ["pending", 1],
      ["right", 1],
    ]);
    expect(tasks(table, { ...EVERYTHING, statuses: ["partly right"] })).toEqual(["c"]);
    expect(tasks(table, { ...EVERYTHING, statuses: ["completed"] })).toEqual(["b", "c"]);
    expect([0, 1, 2, 3].filter((row) => table.isWrong(row))).toEqual([2]);
  });

  it("filters by status, kind, score and words", () => {
    expect(tasks(table, { ...EVERYTHING, statuses: ["failed", "pending"] })).toEqual(["a", "d"]);
    expect(tasks(table, { ...EVERYTHING, kind: "endpoint" })).toEqual(["a"]);
    expect(tasks(table, { ...EVERYTHING, kind: "unheard of" })).toEqual([]);
    expect(tasks(table, { ...EVERYTHING, score: { low: 0.2, high: 1 } })).toEqual(["b", "c"]);
    expect(tasks(table, { ...EVERYTHING, words: "CAPITAL france" })).toEqual(["c"]);
    expect(tasks(table, { ...EVERYTHING, words: "paris" })).toEqual(["b"]);
  });

  it("finds the rollouts that were under way in an interval", () => {
    expect(tasks(table, { ...EVERYTHING, time: { from: 105, to: 120 } })).toEqual(["b", "c"]);
    expect(tasks(table, { ...EVERYTHING, time: { from: 140, to: 160 } })).toEqual(["a", "c"]);
    expect(tasks(table, { ...EVERYTHING, time: { from: 0, to: 50 } })).toEqual([]);
  });

  it("finds the rollouts of a group of failures", () => {
    expect(tasks(table, { ...EVERYTHING, message: "HTTP … from …" })).toEqual(["a"]);
    expect(tasks(table, { ...EVERYTHING, message: "HTTP … to …" })).toEqual([]);
  });

  it("sorts in both directions with unknown values last", () => {
    expect(tasks(table, EVERYTHING, { column: "tokens", descending: false })).toEqual(["a", "b", "c", "d"]);
    expect(tasks(table, EVERYTHING, { column: "tokens", descending: true })).toEqual(["b", "a", "c", "d"]);
    expect(tasks(table, EVERYTHING, { column: "ended", descending: false })).toEqual(["b", "a", "c", "d"]);
    expect(tasks(table, EVERYTHING, { column: "task", descending: true })).toEqual(["d", "c", "b", "a"]);
    expect(tasks(table, EVERYTHING, { column: "no such column", descending: true })).toEqual(["b", "a", "c", "d"]);
  });

  it("sorts what was filtered", () => {
    const filter = { ...EVERYTHING, statuses: ["completed", "pending"] };
    expect(tasks(table, filter, { column: "task", descending: true })).toEqual(["d", "c", "b"]);
  });

  it("replaces a rollout that has a new result, in its place", () => {
    table.add({ ...rows({ task: "d", status: "completed", score: 0.5, answer: "late" }), last: 9 });
    expect(table.count).toBe(4);
    expect(table.last).toBe(9);
    expect(tasks(table, { ...EVERYTHING, statuses: ["pending"] })).toEqual([]);
    expect(tasks(table, { ...EVERYTHING, words: "late" })).toEqual(["d"]);
    expect(tasks(table, EVERYTHING, { column: "score", descending: false })).toEqual(["a", "c", "d", "b"]);
  });

  it("shows what workers report as running", () => {
    const rollout = { label: "d", activity: "acting", since: 1, until: null, worked: 2, worker: "h:1", machine: "" };
    table.setRunning(
      [
        { ...rollout, task: "d", attempt: 1 },
        { ...rollout, task: "unheard of", attempt: 1 },
      ],
      400,
    );
    expect(tasks(table, { ...EVERYTHING, statuses: ["running"] })).toEqual(["d"]);
    expect(tasks(table, { ...EVERYTHING, statuses: ["pending"] })).toEqual([]);
    expect(table.activityOf(3)?.activity).toBe("acting");
    table.setRunning([], 401);
    expect(table.statusOf(3)).toBe("pending");
  });

  it("does not show a rollout as running whose result has arrived", () => {
    const rollout = {
      label: "",
      attempt: 1,
      activity: "acting",
      since: 5,
      until: null,
      worked: 9,
      worker: "",
      machine: "",
    };
    const retried = { ...rollout, task: "a" };
    const finished = { ...rollout, task: "c" };
    table.setRunning([retried, finished], 302);
    expect([table.statusOf(1), table.statusOf(2)]).toEqual(["running", "completed"]);
    table.add({ ...rows({ task: "a", status: "completed", ended: 303 }), last: 9 });
    expect(table.statusOf(1)).toBe("completed");
  });

  it("keeps the rows of earlier chunks when it grows", () => {
    table.add(rows(...Array.from({ length: 5000 }, (_, index) => ({ task: `t${index}`, turns: index }))));
    expect(table.count).toBe(5004);
    expect(table.number("score", 0)).toBe(1);
    expect(table.number("turns", 5003)).toBe(4999);
  });
});

describe("matchesMessage", () => {
  it("needs the fixed parts in their order", () => {
    expect(matchesMessage("task 12 failed after 3 s", "task … failed after … s")).toBe(true);
    expect(matchesMessage("failed after 3 s: task 12", "task … failed after … s")).toBe(false);
  });

  it("accepts an error that is cut", () => {
    const long = `lost 'worker' ${"x".repeat(180)}`;
    expect(matchesMessage(long, `lost … ${"x".repeat(300)} … end`)).toBe(true);
    expect(matchesMessage(long, "other …")).toBe(false);
  });

  it("treats characters of regular expressions as text", () => {
    expect(matchesMessage("f(x) = [1]", "f(x) = […]")).toBe(true);
  });
});

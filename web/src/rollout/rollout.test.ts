import { describe, expect, it } from "vitest";
import type { ExecutionDetail, Pointer, RolloutRows, ToolCall, TranscriptStep } from "../api";
import { tableParams } from "../filters";
import { RolloutTable } from "../rows";
import { step as sampleStep } from "../steps.test-data";
import { frameOf, framesOf } from "./frames";
import { neighboursOf } from "./neighbours";
import { describePointer, shapesOf } from "./pointers";
import { splitError } from "./ResultPanel";
import { arrowPath } from "./Screenshot";
import { summaryOf } from "./ToolCallView";
import { activityBars, barsOf, lengthOf, ticks, totals, waterfallRows } from "./timing";
import { filterCounts, filterTurns, groupTurns, neighbour, parseFilters, turnOf, turnSeconds } from "./turns";

function step(index: number, kind: string, turn: number, given: Partial<TranscriptStep> = {}): TranscriptStep {
  return sampleStep(index, kind, given.text ?? "", { turn, ...given });
}

function call(id: string, name = "python", args = "{}"): ToolCall {
  return { id, name, arguments: args };
}

function pointer(kind: string, given: Partial<Pointer> = {}): Pointer {
  return { kind, x: null, y: null, to_x: null, to_y: null, text: "", ...given };
}

const CONVERSATION = [
  step(0, "system", 0),
  step(1, "user", 0, { images: ["a.png"] }),
  step(2, "model", 1, { reasoning: "hm", calls: [call("x"), call("y")], seconds: 2 }),
  step(3, "tool", 1, { call: "y", seconds: 1, error: true }),
  step(4, "tool", 1, { call: "x", seconds: 0.5 }),
  step(5, "model", 2, { calls: [call("x")] }),
  step(6, "tool", 2, { call: "x", images: ["b.png"] }),
  step(7, "tool", 2, { call: "unknown" }),
  step(8, "model", 3, { text: "done" }),
  step(9, "error", 3, { error: true }),
];

describe("turns", () => {
  const turns = groupTurns(CONVERSATION);

  it("joins calls with their results, also if ids repeat and results come in another order", () => {
    expect(turns.map((turn) => [turn.turn, turn.first])).toEqual([
      [0, 0],
      [1, 2],
      [2, 5],
      [3, 8],
    ]);
    const joined = turns.flatMap((turn) => turn.items.flatMap((item) => item.calls.map((one) => one.result?.index)));
    expect(joined).toEqual([4, 3, 6]);
    expect(turns[2]?.items.map((item) => item.step.index)).toEqual([5, 7]);
  });

  it("keeps a call without a result", () => {
    const [turn] = groupTurns([step(0, "model", 1, { calls: [call("x")] })]);
    expect(turn?.items[0]?.calls).toEqual([{ call: call("x"), result: undefined }]);
  });

  it("begins a turn with each message of the model, also if turns are not numbered", () => {
    expect(groupTurns([step(0, "agent", 0), step(1, "agent", 0)])).toHaveLength(2);
  });

  it("finds the turn of a step and adds the seconds of its steps", () => {
    expect(turnOf(turns, 4)?.first).toBe(2);
    expect(turnOf(turns, 99)).toBeUndefined();
    expect(turnSeconds(turns[1] as never)).toBe(3.5);
    expect(turnSeconds(turns[0] as never)).toBeNull();
    const [turn] = groupTurns([step(0, "model", 1, { seconds: 1 }), step(1, "program", 1, { seconds: 9 })]);
    expect(turnSeconds(turn as never)).toBe(1);
  });

  it("filters items; several filters show what any of them selects", () => {
    const shown = (text: string) =>
      filterTurns(turns, parseFilters(text)).map((turn) => turn.items.map((item) => item.step.index));
    expect(shown("")).toHaveLength(4);
    expect(shown("errors")).toEqual([[2], [9]]);
    expect(shown("tools")).toEqual([[2], [5, 7]]);
    expect(shown("reasoning")).toEqual([[2]]);
    expect(shown("images")).toEqual([[1], [5]]);
    expect(shown("images,errors")).toEqual([[1], [2], [5], [9]]);
  });

  it("ignores filters that do not exist", () => {
    expect(parseFilters("images,<script>,errors,")).toEqual(["errors", "images"]);
    expect(parseFilters(null)).toEqual([]);
    expect(filterCounts(CONVERSATION)).toEqual({ errors: 2, tools: 3, reasoning: 1, images: 2 });
  });

  it("finds neighbours", () => {
    expect(neighbour([0, 2, 5], null, 1)).toBe(0);
    expect(neighbour([0, 2, 5], null, -1)).toBe(5);
    expect(neighbour([0, 2, 5], 2, 1)).toBe(5);
    expect(neighbour([0, 2, 5], 3, -1)).toBe(2);
    expect(neighbour([0, 2, 5], 5, 1)).toBeUndefined();
  });
});

describe("frames", () => {
  const click = [pointer("click", { x: 1, y: 2 })];
  const steps = [
    step(0, "user", 0, { images: ["a.png"] }),
    step(1, "model", 1, { seen: "a.png", pointers: click }),
    step(2, "tool", 1, { images: ["b.png"] }),
    step(3, "model", 2, { seen: "b.png" }),
    step(4, "tool", 2, { images: ["b.png"] }), // nothing changed on the screen
    step(5, "model", 3, { seen: "b.png", pointers: click }),
    step(6, "tool", 3, { images: ["c.png", "d.png"] }),
  ];
  const frames = framesOf(steps);

  it("has one frame for each image that was seen, and those that nobody saw", () => {
    expect(frames.map((frame) => [frame.image, frame.from, frame.step, frame.pointers.length])).toEqual([
      ["a.png", 0, 1, 1],
      ["b.png", 2, 3, 0],
      ["b.png", 4, 5, 1],
      ["c.png", 6, 6, 0],
      ["d.png", 6, 6, 0],
    ]);
  });

  it("shows what a step saw or brought, else the newest image before it", () => {
    expect([0, 1, 2, 3, 4, 5, 6, 7].map((index) => frameOf(frames, index))).toEqual([0, 0, 1, 1, 2, 2, 3, 4]);
    expect(frameOf(frames, null)).toBe(0);
    expect(frameOf([], 3)).toBe(0);
  });

  it("shows an image again if a later message sees it without a new one", () => {
    const again = framesOf([
      steps[0] as TranscriptStep,
      step(1, "model", 1, { seen: "a.png" }),
      step(2, "model", 2, { seen: "a.png" }),
    ]);
    expect(again.map((frame) => frame.step)).toEqual([1, 2]);
  });
});

describe("pointers", () => {
  const size = { width: 1920, height: 1080 };

  it("draws actions where they happened, in pixels of the image", () => {
    const shapes = shapesOf(
      [
        pointer("click", { x: 472, y: 792 }),
        pointer("double click", { x: 1, y: 2 }),
        pointer("right click", { x: 3, y: 4 }),
        pointer("scroll", { x: 5, y: 6, text: "3 down" }),
        pointer("move", { x: 7, y: 8 }),
        pointer("type", { x: 9, y: 10, text: "ls\n" }),
        pointer("drag", { x: 0, y: 0, to_x: 100, to_y: 50 }),
      ],
      size,
    );
    expect(shapes).toEqual([
      { kind: "ring", x: 472, y: 792, outside: false, rings: 1, right: false },
      { kind: "ring", x: 1, y: 2, outside: false, rings: 2, right: false },
      { kind: "ring", x: 3, y: 4, outside: false, rings: 1, right: true },
      { kind: "scroll", x: 5, y: 6, outside: false },
      { kind: "cross", x: 7, y: 8, outside: false },
      { kind: "text", x: 9, y: 10, outside: false, text: "ls" },
      { kind: "arrow", x: 0, y: 0, toX: 100, toY: 50, outside: false },
    ]);
  });

  it("moves places outside the image to its edge and marks them", () => {
    expect(shapesOf([pointer("click", { x: 5000, y: -3 })], size)).toEqual([
      { kind: "ring", x: 1920, y: 0, outside: true, rings: 1, right: false },
    ]);
    expect(shapesOf([pointer("drag", { x: 5, y: 5, to_x: 5, to_y: 9999 })], size)).toEqual([
      { kind: "arrow", x: 5, y: 5, toX: 5, toY: 1080, outside: true },
    ]);
  });

  it("draws nothing without a place, and only the end of a drag whose start is unknown", () => {
    expect(
      shapesOf([pointer("click"), pointer("key", { text: "enter" }), pointer("click", { x: Number.NaN, y: 1 })], size),
    ).toEqual([]);
    expect(shapesOf([pointer("drag", { to_x: 4, to_y: 5 })], size)).toEqual([
      { kind: "cross", x: 4, y: 5, outside: false },
    ]);
  });

  it("describes actions", () => {
    expect(describePointer(pointer("click", { x: 472.4, y: 792 }))).toBe("click at 472, 792");
    expect(describePointer(pointer("type", { x: 1, y: 2, text: "a\u001b[31mb" }))).toBe("type “ab”");
    expect(describePointer(pointer("drag", { x: 1, y: 2, to_x: 3, to_y: 4 }))).toBe("drag from 1, 2 to 3, 4");
    expect(describePointer(pointer("key", { text: "ctrl+s" }))).toBe("key ctrl+s");
  });

  it("gives an arrow a head in its direction", () => {
    expect(arrowPath({ x: 0, y: 0, toX: 100, toY: 0 }, 10)).toBe("M0 0L100 0M100 0L91.22 -4.79M100 0L91.22 4.79");
  });
});

describe("timing", () => {
  it("divides a model call into waiting and generating", () => {
    expect(barsOf(step(0, "model", 1, { at: 1, seconds: 5, waited: 2 }))).toEqual([
      { activity: "waiting for the endpoint", start: 1, end: 3 },
      { activity: "generating", start: 3, end: 6 },
    ]);
    expect(barsOf(step(0, "model", 1, { at: 1, seconds: 5, waited: 99 })).map((bar) => bar.end)).toEqual([6, 6]);
    expect(barsOf(step(0, "tool", 1, { at: -1, seconds: -5 }))).toEqual([{ activity: "acting", start: 0, end: 0 }]);
    expect(barsOf(step(0, "tool", 1, { at: 1 }))).toEqual([]);
  });

  it("puts activities one after the other", () => {
    const bars = activityBars([
      ["starting", 0.5],
      ["generating", 2],
      ["generating", 1],
      ["acting", -1],
    ]);
    expect(bars.map((bar) => [bar.start, bar.end])).toEqual([
      [0, 0.5],
      [0.5, 2.5],
      [2.5, 3.5],
      [3.5, 3.5],
    ]);
    expect(totals(bars)[0]).toEqual({ activity: "generating", seconds: 3 });
  });

  it("finds the length from activities, steps or the result", () => {
    const detail = (given: Partial<ExecutionDetail>) =>
      lengthOf({ activity: [], steps: [], seconds: 0, waited: 0, ...given });
    expect(detail({ activity: [["working", 4]], steps: [step(0, "tool", 1, { at: 1, seconds: 2 })] })).toBe(4);
    expect(detail({ steps: [step(0, "tool", 1, { at: 1, seconds: 2 })] })).toBe(3);
    expect(detail({ seconds: 2, waited: 1 })).toBe(3);
    expect(detail({})).toBe(1);
    expect(waterfallRows(CONVERSATION)).toEqual([]);
  });

  it("has round moments on its axis", () => {
    expect(ticks(10, 5)).toEqual([0, 2, 4, 6, 8, 10]);
    expect(ticks(0.3, 3).map((tick) => Math.round(tick * 10) / 10)).toEqual([0, 0.1, 0.2, 0.3]);
    expect(ticks(3600, 6)).toEqual([0, 1000, 2000, 3000]);
  });
});

describe("errors and calls", () => {
  it("divides an error into message and traceback", () => {
    const traceback = 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: x';
    expect(splitError("no traceback")).toEqual({ message: "no traceback", traceback: "" });
    expect(splitError(`failed\n\n${traceback}`)).toEqual({ message: "failed", traceback });
    expect(splitError(`${traceback}\n`)).toEqual({ message: "ValueError: x", traceback });
  });

  it("shows the arguments of a call on one line", () => {
    expect(summaryOf(call("", "", '{"action_type": "CLICK", "parameters": {"x": 1, "y": 2}}'))).toBe("CLICK x=1 y=2");
    expect(summaryOf(call("", "", '{"code": "a\\nb"}'))).toBe("a b");
    expect(summaryOf(call("", "", "not JSON\n<b>"))).toBe("not JSON <b>");
    expect(summaryOf(call("", "", "null"))).toBe("null");
    expect(summaryOf(call("", "", "{}"))).toBe("");
  });
});

describe("neighbours", () => {
  const table = new RolloutTable();
  const names = ["a", "b", "c", "d", "e"];
  const statuses = ["completed", "failed", "pending", "timed out", "completed"];
  const zeros = names.map(() => 0);
  const empty = names.map(() => "");
  const rows: RolloutRows = {
    next: null,
    last: 5,
    position: [0, 1, 2, 3, 4],
    task: names,
    attempt: names.map(() => 1),
    question: empty,
    reference: empty,
    number: [1, 2, null, 4, 5],
    status: statuses,
    score: [1, null, null, null, 0],
    ending: empty,
    kind: empty,
    error: empty,
    answer: empty,
    turns: zeros,
    tool_calls: zeros,
    tokens: zeros,
    seconds: zeros,
    waited: zeros,
    started: zeros,
    ended: zeros,
    worker: empty,
    machine: empty,
    executions: zeros,
  };
  table.add(rows);
  const near = (query: string, task: string) => neighboursOf(table, new URLSearchParams(query), task, 1);

  it("are in the order of the table, without rollouts that have no result", () => {
    expect(near("", "b")).toMatchObject({ position: 2, count: 5, previous: { task: "a" }, next: { task: "d" } });
    expect(near("", "a")).toMatchObject({
      previous: undefined,
      nextFailure: { task: "b" },
      previousFailure: undefined,
    });
    expect(near("", "a")).toMatchObject({ nextWrong: { task: "e" }, previousWrong: undefined });
    expect(near("", "e")).toMatchObject({ next: undefined, nextWrong: undefined, previousFailure: { task: "d" } });
  });

  it("keep the filter and the order of the run's page", () => {
    expect(near("status=completed", "a")).toMatchObject({
      position: 1,
      count: 2,
      next: { task: "e" },
      nextFailure: undefined,
    });
    expect(near("sort=-task", "b")).toMatchObject({ position: 4, next: { task: "a" }, previous: { task: "d" } });
    expect(near("status=completed", "b")).toMatchObject({ position: 0, next: { task: "a" } });
    expect(tableParams(new URLSearchParams("q=x&step=3&sort=-score&raw=1"))).toEqual({ q: "x", sort: "-score" });
  });
});

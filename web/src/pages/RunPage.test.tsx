import { cleanup, fireEvent, render, screen, waitFor } from "@testing-library/preact";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { FailureGroup, RolloutRows, RunDetail } from "../api";
import { settings } from "../source";
import { RunPage } from "./RunPage";
import { ExportMenu } from "./run/ExportMenu";

const HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script>';

const failure: FailureGroup = {
  party: "agent",
  kind: "ValueError",
  message: `ValueError: … is not ${HOSTILE}`,
  example_message: `ValueError: 7 is not ${HOSTILE}`,
  count: 1,
  final: 1,
  first: 1_700_000_000,
  last: 1_700_000_000.4,
  example: {
    number: 2,
    task: "t2",
    attempt: 1,
    status: "failed",
    final: true,
    ended: 1_700_000_000,
    score: null,
    kind: "ValueError",
  },
};

const detail: RunDetail = {
  row: {
    name: "a run",
    mode: "math",
    model: HOSTILE,
    engine: "local",
    state: "complete",
    total: 3,
    done: 3,
    statuses: { completed: 2, failed: 1 },
    score: 0.5,
    interval: [0.25, 0.75],
    measured: 3,
    score_of_all: 0.5,
    cut: 1,
    cost: 1.5,
    tokens: 30,
    seconds: 10,
    started: 1_700_000_000,
    changed: 1_700_000_010,
    problem: "",
    origin: "",
    data: "gsm8k.jsonl",
    metric: "llm_judge",
    judge: "the judge",
    verdicts: { right: 1, wrong: 1 },
  },
  attempts: 1,
  tasks: 3,
  pending: 0,
  stopped: "",
  pass_at: {},
  means: {},
  measured_by: {},
  prompt_tokens: 20,
  completion_tokens: 10,
  cached_tokens: 0,
  reasoning_tokens: 0,
  requests: 6,
  executions: 3,
  seconds_worked: 9,
  seconds_waited: 1,
  sessions: 1,
  machines: null,
  failures: [failure],
  config: { model: HOSTILE, limit: null },
  live: false,
};

const rollouts: RolloutRows = {
  next: null,
  last: 3,
  position: [1, 2, 3],
  task: ["t1", "t2", "t3"],
  attempt: [1, 1, 1],
  question: ["one?", HOSTILE, "three?"],
  reference: ["1", "2", "so\n#### 3"],
  number: [1, 2, 3],
  status: ["completed", "failed", "completed"],
  score: [1, null, 0],
  ending: ["answered", "", "answer cut"],
  kind: ["", "ValueError", ""],
  error: ["", `ValueError: 7 is not ${HOSTILE}\nTraceback (most recent call last):`, ""],
  answer: ["1", "", HOSTILE],
  turns: [1, 2, 3],
  tool_calls: [0, 0, 0],
  tokens: [10, 10, 10],
  seconds: [1, 2, 3],
  waited: [0, 0, 0],
  started: [1_700_000_000, 1_700_000_000, 1_700_000_000],
  ended: [1_700_000_001, 1_700_000_002, 1_700_000_003],
  worker: ["h:1", "h:1", "h:1"],
  machine: ["", "", ""],
  executions: [1, 1, 1],
};

let changes: Partial<RunDetail> = {};
let changedRollouts: Partial<RolloutRows> = {};

function answer(address: string): Response {
  if (address.endsWith("run.json")) return Response.json({ ...detail, ...changes });
  if (address.endsWith("rollouts.json")) return Response.json({ ...rollouts, ...changedRollouts });
  return Response.json({ error: "not recorded" }, { status: 404 });
}

beforeEach(() => {
  settings.static = true;
  window.location.hash = "#/run/a%20run";
  vi.stubGlobal("fetch", async (address: string) => answer(address));
});

afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
  settings.static = false;
  window.location.hash = "";
  changes = {};
  changedRollouts = {};
});

const tasks = () => [...document.querySelectorAll(".row-link")].map((link) => link.textContent);

describe("RunPage", () => {
  it("shows the score, the progress and the rollouts", async () => {
    render(<RunPage run="a run" />);
    await waitFor(() => expect(tasks()).toEqual(["t1", "t2", "t3"]));
    expect(screen.getByText("0.500")).toBeTruthy();
    expect(screen.getByText("0.250 to 0.750")).toBeTruthy();
    expect(screen.getByText("95 % interval · 3 measured")).toBeTruthy();
    expect(screen.getByText("1 right")).toBeTruthy();
    expect(screen.getByText("1 wrong").getAttribute("href")).toContain("status=wrong");
    expect(screen.queryByText("Pause")).toBeNull();
  });

  it("says why a run stopped early", async () => {
    changes = { stopped: "the first 10 rollouts all failed with the same error: x" };
    render(<RunPage run="a run" />);
    const reason = await screen.findByText(/^Stopped early: /);
    expect(reason.textContent).toBe("Stopped early: the first 10 rollouts all failed with the same error: x");
  });

  it("counts what a scorer measured if the others measured more", async () => {
    changes = { means: { math: 0.5, numeric: 0 }, measured_by: { math: 3, numeric: 2 } };
    render(<RunPage run="a run" />);
    expect(await screen.findByText("math 0.500 · numeric 0.000 (2 measured)")).toBeTruthy();
  });

  it("shows the same end of a reference and an answer, and names an empty answer", async () => {
    changedRollouts = { answer: ["", "", `${"1".repeat(90)}2`], reference: ["1", "2", `${"1".repeat(90)}3`] };
    render(<RunPage run="another run" />);
    await waitFor(() => expect(tasks().length).toBe(3));
    const ends = [...document.querySelectorAll(".answer-end .tail")].map((end) => end.textContent?.at(-1));
    expect(ends).toEqual(["1", "2", "3", "2"]);
    expect(screen.getByText("no answer")).toBeTruthy();
    expect(screen.queryByText("answered")).toBeNull();
  });

  it("names data, scorer, judge, model and mode", async () => {
    render(<RunPage run="a run" />);
    await waitFor(() => expect(tasks().length).toBe(3));
    const facts = [...document.querySelectorAll(".run-facts > div")].map((one) => one.textContent);
    expect(facts).toEqual([
      "Datagsm8k.jsonl",
      "Scorerllm_judge",
      "Judgethe judge",
      `Model${HOSTILE}`,
      "Modemath",
      "Enginelocal",
    ]);
  });

  it("shows wrong answers beside their references, and leads to the first one", async () => {
    render(<RunPage run="a run" />);
    await waitFor(() => expect(tasks().length).toBe(3));
    expect(document.querySelector('[title="so\n#### 3"]')?.textContent).toBe("3");
    expect(document.querySelector(".wrong-answer .tail")?.textContent).toBe(HOSTILE);
    const states = [...document.querySelectorAll(".rollouts .state")].map((state) => state.textContent);
    expect(states).toEqual(["right", "failed", "wrong"]);
    const link = screen.getByText("First wrong answer ›").getAttribute("href");
    expect(link).toBe("#/run/a%20run/rollout/t3/1");
  });

  it("gives the columns of texts the width that their contents need", async () => {
    render(<RunPage run="a run" />);
    await waitFor(() => expect(tasks().length).toBe(3));
    const tracks = document.querySelector<HTMLElement>(".data-table")?.style.getPropertyValue("--tracks") ?? "";
    expect([...tracks.matchAll(/(\d+)fr/g)].map(([, share]) => Number(share))).toEqual([4, 38, 3, 38]);
  });

  it("shows the whole command of each export", async () => {
    settings.static = false;
    settings.formats = ["jsonl"];
    render(<ExportMenu run="a run" />);
    const command = await screen.findByText(/^paragent export .* --format jsonl/);
    expect(command.className).not.toContain("clipped");
    settings.formats = [];
  });

  it("counts several statuses in the filter, which has no room for their names", async () => {
    window.location.hash = "#/run/a%20run?status=failed,timed%20out,unscored";
    render(<RunPage run="a run" />);
    const menu = (await screen.findByRole("combobox", { name: "Status" })) as HTMLSelectElement;
    expect(menu.selectedOptions[0]?.textContent).toBe("3 statuses");
    expect(menu.title).toBe("failed, timed out, unscored");
  });

  it("names failures beside the state, and folds the timeline of a run without machines", async () => {
    render(<RunPage run="a run" />);
    await waitFor(() => expect(tasks().length).toBe(3));
    expect(screen.getByText("complete").getAttribute("style")).toContain("--state-orange");
    expect(screen.getByText("1 failed", { selector: ".run-failed" })).toBeTruthy();
    const timeline = screen.getByRole("button", { name: "Timeline" });
    expect(timeline.getAttribute("aria-expanded")).toBe("false");
    expect(document.querySelector(".timeline-place")).toBeNull();
    fireEvent.click(timeline);
    await waitFor(() => expect(document.querySelector(".timeline-place")).toBeTruthy());
    expect(window.location.hash).toContain("timeline=1");
  });

  it("shows what models and tools wrote as text", async () => {
    render(<RunPage run="a run" />);
    await waitFor(() => expect(tasks().length).toBe(3));
    expect(screen.getAllByText(HOSTILE, { exact: false }).length).toBeGreaterThan(3);
    expect(document.querySelector("main img, main script")).toBeNull();
    window.location.hash = "#/run/a%20run?tab=configuration";
    await waitFor(() => expect(screen.getByText("not set")).toBeTruthy());
    expect(document.querySelector("main img, main script")).toBeNull();
  });

  it("shows the message of a failure without its traceback, and the time once", async () => {
    render(<RunPage run="a run" />);
    await waitFor(() => expect(tasks().length).toBe(3));
    expect(document.querySelector(".row-error")?.textContent).toBe(`ValueError: 7 is not ${HOSTILE}`);
    expect(document.querySelector(".failures td.soft")?.textContent).toMatch(/^[\d:]+$/);
  });

  it("filters the table by a group of failures and leads to an example", async () => {
    render(<RunPage run="a run" />);
    await waitFor(() => expect(tasks().length).toBe(3));
    fireEvent.click(screen.getByText(failure.example_message, { selector: ".group-message" }));
    await waitFor(() => expect(tasks()).toEqual(["t2"]));
    expect(document.querySelector(".chip")?.textContent).toContain(failure.example_message);
    expect(document.body.textContent).not.toContain(failure.message);
    const example = screen.getByRole("link", { name: /^Example/ }).getAttribute("href") ?? "";
    expect(example.startsWith("#/run/a%20run/rollout/t2/1?execution=2&kind=ValueError")).toBe(true);
    fireEvent.click(screen.getByText("Clear filters"));
    await waitFor(() => expect(tasks().length).toBe(3));
  });

  it("counts cut replies and filters the table by them", async () => {
    render(<RunPage run="a run" />);
    await waitFor(() => expect(tasks().length).toBe(3));
    expect(screen.getByText("1 cut").getAttribute("href")).toContain("cut=1");
    fireEvent.click(screen.getByLabelText("cut (1)"));
    await waitFor(() => expect(tasks()).toEqual(["t3"]));
    expect(screen.getByText("answer cut")).toBeTruthy();
    expect(window.location.hash).toContain("cut=1");
  });

  it("has its filters and its order in the address", async () => {
    window.location.hash = "#/run/a%20run?status=completed&sort=-turns";
    render(<RunPage run="a run" />);
    await waitFor(() => expect(tasks()).toEqual(["t3", "t1"]));
    fireEvent.input(screen.getByLabelText("Search rollouts"), { target: { value: "one?" } });
    await waitFor(() => expect(tasks()).toEqual(["t1"]));
    expect(window.location.hash).toContain("q=one%3F");
    expect(window.location.hash).toContain("status=completed");
    const link = screen.getByText("t1").closest("a")?.getAttribute("href");
    expect(link).toBe("#/run/a%20run/rollout/t1/1?status=completed&sort=-turns&q=one%3F");
  });
});

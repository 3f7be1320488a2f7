import { cleanup, render, waitFor } from "@testing-library/preact";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { RolloutRows } from "./api";
import { type Rollouts, useRollouts } from "./rows";

const NUMBERS = ["turns", "tool_calls", "tokens", "seconds", "waited", "started", "ended", "executions"];
const TEXTS = ["question", "reference", "ending", "kind", "error", "answer", "worker", "machine"];

/** Results of consecutive tasks, each with its number. */
function rows(first: number, count: number, values: Partial<RolloutRows>): RolloutRows {
  const column = <T,>(value: (index: number) => T) => Array.from({ length: count }, (_, index) => value(first + index));
  return {
    ...(Object.fromEntries(NUMBERS.map((name) => [name, column(() => 0)])) as unknown as RolloutRows),
    ...Object.fromEntries(TEXTS.map((name) => [name, column(() => "")])),
    next: null,
    last: 0,
    position: column((index) => index),
    task: column((index) => `t${index}`),
    attempt: column(() => 1),
    number: column((index) => index),
    status: column(() => "completed"),
    score: column(() => 1),
    ...values,
  };
}

let requests: string[];
let answers: Record<string, RolloutRows | Error>;

beforeEach(() => {
  requests = [];
  vi.stubGlobal("fetch", async (address: string) => {
    const query = address.split("?")[1] ?? "";
    requests.push(query);
    const found = answers[query];
    if (found instanceof Error || found === undefined) throw found ?? new Error(`no answer to ${query}`);
    return Response.json(found);
  });
});

afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
});

let shown: Rollouts;

function Probe({ run }: { run: string }) {
  shown = useRollouts(run);
  return <p>{shown.table.count}</p>;
}

describe("useRollouts", () => {
  it("loads a small part, then large ones, then what is new since the first", async () => {
    answers = {
      "after=0&limit=1000": rows(1, 2, { next: 2, last: 4 }),
      "after=2&limit=20000": rows(3, 2, { last: 6 }),
      "since=4": rows(2, 1, { last: 7, status: ["failed"] }),
      "since=7": rows(1, 0, { last: 7 }),
    };
    render(<Probe run="chunks" />);
    await waitFor(() => expect(shown.complete).toBe(true));
    expect(shown.table.count).toBe(4);
    shown.update();
    await waitFor(() => expect(shown.table.statusOf(1)).toBe("failed"));
    await waitFor(() => expect(requests.at(-1)).toBe("since=7"));
    expect(shown.table.count).toBe(4);
  });

  it("keeps the rollouts of the run that was shown last", async () => {
    answers = {
      "after=0&limit=1000": rows(1, 3, { last: 3 }),
      "after=0&limit=1": rows(1, 1, { last: 3 }),
      "since=3": rows(1, 0, { last: 3 }),
    };
    const first = render(<Probe run="kept" />);
    await waitFor(() => expect(shown.complete).toBe(true));
    first.unmount();
    render(<Probe run="kept" />);
    expect(shown.table.count).toBe(3);
    await waitFor(() => expect(requests.at(-1)).toBe("since=3"));
    expect(requests.filter((query) => query === "after=0&limit=1000").length).toBe(1);
  });

  it("loads everything again if another run has its name", async () => {
    answers = { "after=0&limit=1000": rows(1, 3, { last: 9 }) };
    const first = render(<Probe run="replaced" />);
    await waitFor(() => expect(shown.complete).toBe(true));
    first.unmount();
    answers = { "after=0&limit=1": rows(1, 1, { last: 1 }), "after=0&limit=1000": rows(1, 1, { last: 1 }) };
    render(<Probe run="replaced" />);
    await waitFor(() => expect(shown.table.count).toBe(1));
  });

  it("says why it failed, and loads at the next occasion", async () => {
    answers = { "after=0&limit=1000": new Error("the server is gone") };
    render(<Probe run="failing" />);
    await waitFor(() => expect(shown.error).toBe("the server is gone"));
    answers = { "after=0&limit=1000": rows(1, 1, { last: 1 }) };
    shown.update();
    await waitFor(() => expect(shown.complete).toBe(true));
    expect(shown.error).toBe("");
  });
});

import { cleanup, fireEvent, render, screen } from "@testing-library/preact";
import { afterEach, expect, test, vi } from "vitest";
import type { ExecutionDetail, TranscriptStep } from "../api";
import { step } from "../steps.test-data";
import { LongText, SideBySide } from "./Trajectories";

// KaTeX draws nothing in quirks mode, and happy-dom does not say that it is in standards mode.
vi.hoisted(() => Object.defineProperty(document, "compatMode", { value: "CSS1Compat" }));

afterEach(cleanup);

function execution(run: string, steps: TranscriptStep[]): ExecutionDetail {
  return {
    run,
    number: 7,
    task: "t/1",
    attempt: 1,
    status: "completed",
    final: true,
    score: 1,
    scores: {},
    question: "",
    reference: "",
    answer: "",
    ending: "",
    party: "",
    kind: "",
    error: "",
    turns: 1,
    tool_calls: 0,
    prompt_tokens: null,
    completion_tokens: null,
    seconds: 1,
    waited: 0,
    started: 0,
    ended: 0,
    worker: "",
    machine: "",
    activity: [],
    steps,
    tools: [],
    files: [],
    executions: [],
    attempts: [],
    notes: [],
    sequences: [],
  };
}

const HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(1)"> [x](javascript:alert(1)) \u001b[31m';

test("hostile text stays text", () => {
  const call = { id: "1", name: HOSTILE, arguments: HOSTILE };
  const first = execution("a", [step(0, "model", HOSTILE, { reasoning: HOSTILE, name: HOSTILE, calls: [call] })]);
  const second = execution("b", [step(0, "model", `${HOSTILE} else`)]);
  const { container } = render(<SideBySide runs={["a", "b"]} executions={[first, second]} attempt={0} />);
  expect(container.querySelector("script, img, iframe")).toBeNull();
  expect([...container.querySelectorAll("a")].every((link) => link.getAttribute("href")?.startsWith("#/"))).toBe(true);
  expect(container.textContent).toContain("<script>alert(1)</script>");
});

test("the first differing step is marked, and equal ones before it are folded", () => {
  const common = [step(0, "system", "be brief"), step(1, "user", "2+2?"), step(2, "model", "let me see")];
  const a = execution("a", [...common, step(3, "model", "the sum is 4")]);
  const b = execution("b", [...common, step(3, "model", "the sum is 5")]);
  const { container } = render(<SideBySide runs={["a", "b"]} executions={[a, b]} attempt={0} />);
  const marked = container.querySelector(".first-difference");
  expect(marked?.textContent).toContain("First difference: step 3");
  expect([...(marked?.querySelectorAll("mark") ?? [])].map((each) => each.textContent)).toEqual(["4", "5"]);
  expect(screen.queryByText("be brief")).toBeNull();
  fireEvent.click(screen.getByText(/2 steps before this are the same/));
  expect(screen.getAllByText("be brief").length).toBe(1);
});

test("a task has its reference, verdicts and drawn formulas", () => {
  const wrong = execution("a", [step(0, "model", "So\n\n**Carla** has $x_1$.\n\nEnd")]);
  const right = execution("b", [step(0, "model", "So\n\n#### 260\n\nEnd")]);
  const given = [{ ...wrong, score: 0, ending: "answer cut", reference: "\\frac{1}{3}" }, right];
  const { container } = render(<SideBySide runs={["a", "b"]} executions={given} attempt={0} />);
  expect([...container.querySelectorAll(".state")].map((state) => state.textContent)).toEqual(["wrong", "right"]);
  expect(container.querySelector(".trajectory-head .cut")?.textContent).toBe(", answer cut");
  const drawn = [...container.querySelectorAll("annotation")].map((formula) => formula.textContent);
  expect(drawn).toEqual(["\\frac{1}{3}", "x_1"]);
  const marked = [...container.querySelectorAll(".marked")];
  expect(marked[0]?.querySelector("strong")?.textContent).toBe("Carla");
  expect(marked[1]?.textContent).toBe("#### 260");
});

test("a run without a result is named", () => {
  const only = execution("a", [step(0, "user", "hello")]);
  render(<SideBySide runs={["a", "b"]} executions={[only, null]} attempt={0} />);
  expect(screen.getByText("Only one run has a result of this task.")).toBeTruthy();
  expect(screen.getByText("No result of this task in: b")).toBeTruthy();
});

test("a long text is cut around its difference until all of it is asked for", () => {
  const long = "common ".repeat(2000);
  const { container } = render(<LongText text={`${long}41 end`} other={`${long}42 end`} />);
  expect(container.querySelector("mark")?.textContent).toBe("41");
  expect(container.textContent?.length).toBeLessThan(2000);
  fireEvent.click(screen.getByText(/Show all 14,006 characters/));
  expect(container.textContent).toBe(`${long}41 end`);
});

import { cleanup, fireEvent, render, screen } from "@testing-library/preact";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { SearchHit, SearchResults } from "../api";
import { settings } from "../source";
import { step } from "../steps.test-data";
import { SearchPage } from "./SearchPage";

function hit(number: number, at: number, kind: string, before: string): SearchHit {
  const execution = { number, task: `task/${number}`, attempt: 1, status: "failed", final: true, ended: 0, score: 0 };
  return { execution: { ...execution, kind: "" }, step: at, kind, before, match: "needle", after: " & <b>after</b>" };
}

function results(hits: SearchHit[], others: Partial<SearchResults> = {}): SearchResults {
  return { hits, total: hits.length, indexed: 10, executions: 10, problem: "", ...others };
}

function answer(files: Record<string, unknown>): void {
  vi.stubGlobal("fetch", async (address: string) =>
    address in files ? Response.json(files[address]) : Response.json({ error: `no ${address}` }, { status: 404 }),
  );
}

beforeEach(() => {
  window.location.hash = "#/run/r/search?q=needle";
});
afterEach(() => {
  cleanup();
  settings.static = false;
  vi.unstubAllGlobals();
});

test("hits are grouped by rollout, link to their step, and are text", async () => {
  const hits = [hit(1, 5, "model", "<script>x</script> "), hit(2, 1, "tool", ""), hit(1, 2, "reasoning", "")];
  answer({ "api/runs/r/search?q=needle": results(hits) });
  const { container } = render(<SearchPage run="r" />);
  await screen.findByText("3 hits in 2 rollouts");
  expect(container.querySelector("script, b")).toBeNull();
  expect(container.textContent).toContain("<script>x</script> needle & <b>after</b>");
  const links = [...container.querySelectorAll(".search-hit")].map((link) => link.getAttribute("href"));
  expect(links).toEqual([
    "#/run/r/rollout/task%2F1/1?execution=1&step=2",
    "#/run/r/rollout/task%2F1/1?execution=1&step=5",
    "#/run/r/rollout/task%2F2/1?execution=2&step=1",
  ]);
});

test("a completed rollout has its verdict", async () => {
  const wrong = hit(1, 5, "model", "");
  answer({
    "api/runs/r/search?q=needle": results([{ ...wrong, execution: { ...wrong.execution, status: "completed" } }]),
  });
  render(<SearchPage run="r" />);
  expect(await screen.findByText("wrong")).toBeTruthy();
});

test("hits can be filtered by kind", async () => {
  answer({ "api/runs/r/search?q=needle": results([hit(1, 5, "model", ""), hit(2, 1, "tool", "")]) });
  const { container } = render(<SearchPage run="r" />);
  fireEvent.click(await screen.findByText(/tool results/, { selector: "button" }));
  await screen.findByText("1 hit in 1 rollout");
  expect(container.querySelectorAll(".search-hit").length).toBe(1);
  expect(window.location.hash).toContain("kind=tool");
});

test("a problem of the query and the progress of the index are shown", async () => {
  answer({ "api/runs/r/search?q=needle": results([], { problem: "a quote is not closed" }) });
  const { unmount } = render(<SearchPage run="r" />);
  await screen.findByText("a quote is not closed");
  unmount();
  answer({ "api/runs/r/search?q=needle": results([], { indexed: 3 }) });
  render(<SearchPage run="r" />);
  await screen.findByText(/The index is being built: 3 of 10 executions/);
});

test("without words, the page explains how to search; / moves to the box", () => {
  window.location.hash = "#/run/r/search";
  render(<SearchPage run="r" />);
  expect(screen.getByText("How to search")).toBeTruthy();
  const box = screen.getByRole("searchbox");
  box.blur();
  fireEvent.keyDown(window.document.body, { key: "/" });
  expect(document.activeElement).toBe(box);
});

test("an export is searched without a server", async () => {
  settings.static = true;
  const rows = { task: ["t"], attempt: [1], number: [4], status: ["completed"] };
  const steps = [step(0, "user", "no"), step(1, "model", "a needle"), step(2, "model", "", { reasoning: "needle" })];
  answer({
    "data/runs/r/rollouts.json": rows,
    "data/runs/r/executions/4.json": { number: 4, task: "t", attempt: 1, status: "completed", score: 1, steps },
  });
  render(<SearchPage run="r" />);
  await screen.findByText("2 hits in 1 rollout");
  expect(screen.getByText(/reasoning/, { selector: "button" })).toBeTruthy();
});

test("says how many hits are not shown", async () => {
  answer({ "api/runs/r/search?q=needle": results([hit(1, 5, "model", "")], { total: 412 }) });
  const { unmount } = render(<SearchPage run="r" />);
  await screen.findByText("The first 1 of 412 hits, in 1 rollout");
  unmount();
  answer({ "api/runs/r/search?q=needle": results([hit(1, 5, "model", "")], { total: 1000 }) });
  render(<SearchPage run="r" />);
  await screen.findByText("The first 1 of at least 1,000 hits, in 1 rollout");
});

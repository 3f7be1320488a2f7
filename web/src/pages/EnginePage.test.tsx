import { cleanup, fireEvent, render, screen, within } from "@testing-library/preact";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { EngineDetail } from "../api";
import { EnginePage } from "./EnginePage";

const AT = 1_800_000_000;
const HOSTILE = "killed by \u001b[31m<script>signal 9</script>";

function detail(others: Partial<EngineDetail> = {}): EngineDetail {
  const workers = [
    { name: "h:1", state: "ready", since: Date.now() / 1000 - 75, active: 2, done: 5, lost: 0 },
    { name: "h:2", state: "lost", since: AT, active: 0, done: 1, lost: 3 },
  ];
  const events: EngineDetail["events"] = [
    [AT + 20, "h:2", "lost", HOSTILE],
    ...Array.from({ length: 15 }, (_, index): [number, string, string, string] => [AT - index, "h:1", "ready", ""]),
  ];
  return { engine: "local", live: true, workers, restarts: 1, lost: 3, events, ...others };
}

let answer: EngineDetail;

beforeEach(() => {
  answer = detail();
  vi.stubGlobal("fetch", async () => Response.json(answer));
  window.location.hash = "#/run/r/engine";
});
afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
});

test("workers with their state, and what was lost", async () => {
  const { container } = render(<EnginePage run="r" />);
  const grid = await screen.findByRole("grid", { name: "Workers" });
  expect(within(grid).getByText("ready")).toBeTruthy();
  expect(within(grid).getByText("for 1:15")).toBeTruthy();
  expect(screen.getByText("Lost executions").parentElement?.textContent).toContain("3");
  expect(screen.getByText("Restarts").parentElement?.textContent).toContain("1");
  expect(screen.getByText("killed by <script>signal 9</script>")).toBeTruthy();
  expect(container.querySelector("script")).toBeNull();
});

test("many events are folded", async () => {
  render(<EnginePage run="r" />);
  const events = await screen.findByRole("region", { name: "Events" });
  const rows = () => events.querySelectorAll("tbody tr").length;
  expect(rows()).toBe(12);
  fireEvent.click(screen.getByText("Show all 16"));
  expect(rows()).toBe(16);
});

test("a run without workers", async () => {
  answer = detail({ workers: [], events: [], live: false, restarts: 0, lost: 0 });
  render(<EnginePage run="r" />);
  expect(await screen.findByText("No worker has started yet.")).toBeTruthy();
  expect(screen.getByText("Nothing has happened yet.")).toBeTruthy();
});

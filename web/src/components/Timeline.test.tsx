import { cleanup, fireEvent, render, screen } from "@testing-library/preact";
import { afterEach, beforeEach, expect, test } from "vitest";
import type { Timeline } from "../api";
import { GUTTER } from "../timeline/draw";
import { TimelineView } from "./Timeline";

const ORIGIN = 1_760_000_000;
const TIMELINE: Timeline = {
  origin: ORIGIN,
  start: 0,
  end: 100,
  states: ["generating", "waiting for a machine", "leased", "free"],
  tracks: [
    { kind: "machine", name: "vm-1", slot: 0, busy: 0.4, spans: [[0, 60, 3, 0], [60, 100, 2, 7]] }, // biome-ignore format: spans
    { kind: "worker", name: "host:1", slot: 0, busy: 0.5, spans: [[0, 50, 0, 7], [50, 100, 1, 8]] }, // biome-ignore format: spans
    { kind: "worker", name: "host:1", slot: 1, busy: 0.1, spans: [[90, 100, 0, 9]] },
  ],
  hidden: 0,
  machine_utilisation: 0.4,
  worker_utilisation: 0.3,
  sessions: [[0, 100]],
  columns: [[0, 100]],
  machine_shares: [[0], [0], [0.4], [0.6]],
  worker_shares: [[0.3], [0.25], [0], [0]],
};
const WIDTH = 1000 + GUTTER + 14; // ten pixels for a second

beforeEach(() => {
  window.location.hash = "#/run/r";
});
afterEach(cleanup);

function show() {
  const name = (execution: number) => ({ task: `<b>task ${execution}</b>`, attempt: 2, status: "failed" });
  const { container } = render(<TimelineView run="r" timeline={TIMELINE} width={WIDTH} zoom={null} name={name} />);
  return container.querySelector(".timeline-plot") as HTMLElement;
}

function params(): URLSearchParams {
  return new URLSearchParams(window.location.hash.split("?")[1] ?? "");
}

test("figures and a table say what the drawing shows", () => {
  show();
  expect(screen.getByText("40 %", { selector: "b" })).toBeTruthy();
  const rows = screen.getAllByRole("row").map((row) => [...row.children].map((cell) => cell.textContent));
  expect(rows).toContainEqual(["machine vm-1", "40 %", "free 60 %, leased 40 %"]);
  expect(rows).toContainEqual(["worker host:1, place 2", "10 %", "idle 90 %, generating 10 %"]);
});

test("dragging selects a time, Escape clears it", () => {
  const plot = show();
  fireEvent.pointerDown(plot, { button: 0, clientX: GUTTER + 200, clientY: 5, pointerId: 1 });
  fireEvent.pointerMove(plot, { clientX: GUTTER + 450, clientY: 5, pointerId: 1 });
  fireEvent.pointerUp(plot, { clientX: GUTTER + 450, clientY: 5, pointerId: 1 });
  expect([params().get("from"), params().get("to")]).toEqual([String(ORIGIN + 20), String(ORIGIN + 45)]);
  fireEvent.keyDown(plot, { key: "Escape" });
  expect(params().get("from")).toBeNull();
});

test("the selected time can be enlarged", () => {
  window.location.hash = `#/run/r?from=${ORIGIN + 10}&to=${ORIGIN + 20}`;
  show();
  fireEvent.click(screen.getByText("Zoom in"));
  expect(params().get("view")).toBe(`${ORIGIN + 10},${ORIGIN + 20}`);
});

test("the keyboard moves along tracks and spans, says where it is, and opens the rollout", () => {
  const plot = show();
  const spoken = () => plot.querySelector("[aria-live]")?.textContent;
  fireEvent.keyDown(plot, { key: "ArrowDown" });
  expect(spoken()).toContain("machine vm-1, free");
  fireEvent.keyDown(plot, { key: "ArrowDown" });
  fireEvent.keyDown(plot, { key: "ArrowRight" });
  expect(spoken()).toContain("worker host:1, place 1, waiting for a machine, <b>task 8</b>, attempt 2, failed");
  fireEvent.keyDown(plot, { key: "Enter", shiftKey: true });
  expect(params().get("from")).toBe(String(ORIGIN + 50));
  fireEvent.keyDown(plot, { key: "Enter" });
  expect(decodeURIComponent(window.location.hash)).toBe("#/run/r/rollout/<b>task 8</b>/2?execution=8");
});

test("a state of the legend can be singled out", () => {
  show();
  fireEvent.click(screen.getByTitle("Show only: generating"));
  expect(params().get("activity")).toBe("generating");
});

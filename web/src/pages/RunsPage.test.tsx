import { cleanup, render, screen, waitFor } from "@testing-library/preact";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { RunRow } from "../api";
import { settings } from "../source";
import { RunsPage } from "./RunsPage";

const RUN: RunRow = {
  name: "stopped early",
  mode: "math",
  model: "m",
  engine: "local",
  state: "stopped",
  total: 10,
  done: 7,
  statuses: { completed: 7, infrastructure: 3 },
  score: 0.5,
  interval: [0.4, 0.6],
  measured: 7,
  score_of_all: 0.35,
  cut: 4,
  cost: null,
  tokens: 30,
  seconds: 10,
  started: 1_700_000_000,
  changed: 1_700_000_010,
  problem: "",
  origin: "",
  data: "gsm8k.jsonl",
  metric: "math",
  judge: "",
  verdicts: { right: 4, wrong: 3 },
};

beforeEach(() => {
  settings.static = true;
  vi.stubGlobal("fetch", async () => Response.json({ runs: [RUN], below: [] }));
});

afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
  settings.static = false;
});

it("shows failures and cut replies of a run, and colours one that stopped with failures", async () => {
  render(<RunsPage />);
  await waitFor(() => expect(screen.getByText("stopped early")).toBeTruthy());
  expect(document.querySelector(".progress-notes")?.textContent).toBe("3 failed4 cut");
  expect(screen.getByText("stopped").getAttribute("style")).toContain("--state-orange");
});

it("shows how many rollouts were measured beside the score of a run that mostly failed", async () => {
  const mostly = { ...RUN, name: "mostly failed", total: 30, measured: 4, score: 1 };
  vi.stubGlobal("fetch", async () => Response.json({ runs: [RUN, mostly], below: [] }));
  render(<RunsPage />);
  await waitFor(() => expect(screen.getByText("mostly failed")).toBeTruthy());
  const notes = [...document.querySelectorAll(".few-measured")].map((note) => note.textContent);
  expect(notes).toEqual(["4 of 30 measured"]);
});

import { render } from "preact";
import { act } from "preact/test-utils";
import { expect, test } from "vitest";
import { exportCommand } from "../pages/run/ExportMenu";
import { settings } from "../source";
import { step } from "../steps.test-data";
import { titleOf } from "./Outline";
import { sequenceText } from "./RolloutHead";
import { facts } from "./StepParts";
import { probability, TokenStrip } from "./TokenStrip";
import { filterTurns, groupTurns } from "./turns";

test("tokens are coloured by their probability", () => {
  const root = document.createElement("div");
  const tokens = { ids: [7, 8], logprobs: [0, Math.log(0.25)], prompt: 3, version: 2 };
  act(() => render(<TokenStrip tokens={tokens} />, root));
  const shown = [...root.querySelectorAll("li")];
  expect(shown.map((one) => one.textContent)).toEqual(["7", "8"]);
  expect(shown.map((one) => one.style.getPropertyValue("--share"))).toEqual(["100%", "25%"]);
  expect(shown[1]?.title).toContain("Position 4, probability 0.250");
  expect(root.textContent).toContain("policy version 2");
});

test("a probability is never outside of 0 and 1", () => {
  expect([probability(5), probability(-1e9), probability(0)]).toEqual([1, 0, 1]);
});

test("a long reply does not become a long page", () => {
  const root = document.createElement("div");
  const tokens = { ids: Array.from({ length: 6000 }, (_, id) => id), logprobs: null, prompt: 0, version: null };
  act(() => render(<TokenStrip tokens={tokens} />, root));
  expect(root.querySelectorAll("li")).toHaveLength(5000);
  expect(root.textContent).toContain("1,000 more");
});

test("a branch begins a part of its own, also when steps are filtered", () => {
  const steps = [
    step(0, "user", "question", { turn: 0 }),
    step(1, "model", "answer"),
    step(2, "branch", "Branch 1: shares 1 message with branch 0", { branch: 1 }),
    step(3, "user", "again", { branch: 1 }),
    step(4, "model", "other", { turn: 2, branch: 1 }),
  ];
  const turns = groupTurns(steps);
  expect(turns.map((turn) => turn.items.map((item) => item.step.index))).toEqual([[0], [1], [3], [4]]);
  expect(turns.map((turn) => titleOf(turn))[2]).toBe("Branch 1: shares 1 message with branch 0");
  expect(filterTurns(turns, ["errors"]).map((turn) => turn.branch)).toEqual([
    "Branch 1: shares 1 message with branch 0",
  ]);
});

test("the head of a reply says what answered it", () => {
  const reply = step(0, "model", "x", { response_model: "small-2", cached: true, version: 4, sampled_tokens: 12 });
  expect(facts(reply).map((fact) => fact.text)).toEqual(["by small-2", "from the cache", "version 4", "12 ids"]);
});

test("token sequences are summed up", () => {
  const one = { tokens: 1000, sampled: 300, calls: 2, logprobs: true };
  expect(sequenceText([one])).toBe("1,000 in 1 sequence, 300 sampled, with logprobs");
  expect(sequenceText([one, { ...one, logprobs: false }])).toContain("2,000 in 2 sequences, 600 sampled, not all");
});

test("names in the command of an export are quoted", () => {
  settings.folder = "results";
  expect(exportCommand("run", "atif")).toBe("paragent export results/run --format atif --output run-atif");
  expect(exportCommand("it's; rm", "inspect")).toContain("'results/it'\\''s; rm'");
});

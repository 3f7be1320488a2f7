import { expect, test } from "vitest";
import { step } from "../steps.test-data";
import { alignSteps, differingWords, firstDifference, sameStep, splitDifference, splitLines } from "./divergence";

const call = (id: string, args: string) => ({ id, name: "search", arguments: args });

test("steps that say and do the same are the same, whatever their times and ids", () => {
  const a = step(1, "model", "look", { seconds: 1, prompt_tokens: 5, calls: [call("x", '{"a": 1, "b": [2]}')] });
  const b = step(1, "model", "look", { seconds: 9, prompt_tokens: 7, calls: [call("y", '{"b":[2],"a":1}')] });
  expect(sameStep(a, b)).toBe(true);
  expect(sameStep(a, { ...b, text: "Look" })).toBe(false);
  expect(sameStep(a, { ...b, kind: "agent" })).toBe(false);
  expect(sameStep(a, { ...b, calls: [call("y", '{"b":[3],"a":1}')] })).toBe(false);
  expect(sameStep(a, { ...b, calls: [] })).toBe(false);
  expect(sameStep(a, null)).toBe(false);
});

test("texts that are cut differ if their lengths do", () => {
  expect(sameStep(step(0, "tool", "cut", { length: 200_000 }), step(0, "tool", "cut", { length: 300_000 }))).toBe(
    false,
  );
});

test("arguments that are not JSON are compared as text", () => {
  const broken = (args: string) => step(0, "model", "", { calls: [call("x", args)] });
  expect(sameStep(broken("{not"), broken("{not"))).toBe(true);
  expect(sameStep(broken("{not"), broken("{no"))).toBe(false);
});

test("the first difference of several trajectories", () => {
  const question = step(0, "user", "2+2?");
  const aligned = alignSteps([
    [question, step(1, "model", "4")],
    [question, step(1, "model", "4"), step(2, "user", "sure?")],
    [question, step(1, "model", "5")],
  ]);
  expect(aligned.map((each) => each.same)).toEqual([true, false, false]);
  expect(firstDifference(aligned)).toBe(1);
  expect(aligned[2]?.steps[0]).toBeNull();
});

test("a trajectory that ends earlier differs at its end; equal ones do not", () => {
  const steps = [step(0, "user", "a"), step(1, "model", "b")];
  expect(firstDifference(alignSteps([steps, steps.slice(0, 1)]))).toBe(1);
  expect(firstDifference(alignSteps([steps, steps]))).toBeNull();
  expect(firstDifference(alignSteps([[], []]))).toBeNull();
});

test("the differing lines of a text, or paragraphs if it has blocks", () => {
  expect(splitLines("a\n\nb 1 c\n\nd", "a\n\nb 2 c\n\nd")).toEqual(["a\n", "\nb 1 c", "\n\nd"]);
  expect(splitLines("So 4.\n#### 4", "So 4.\n#### 5")).toEqual(["So 4.", "\n#### 4", ""]);
  expect(splitLines("```\na\nb\n```\n\nc", "```\na\nx\n```\n\nc")).toEqual(["", "```\na\nb\n```", "\n\nc"]);
  expect(splitLines("b 1 c", "b 2 c")).toEqual(["", "b 1 c", ""]);
  expect(splitLines("a\n\nb", "a\n\nb")).toEqual(["a\n\nb", "", ""]);
});

test("the differing words of a text", () => {
  const pieces = differingWords("2084 are left.\nAnswer: 2084", "2074 are left.\nAnswer: 2074");
  expect(pieces.map((each) => each.text)).toEqual(["2084", " are left.\nAnswer: ", "2084"]);
  expect(pieces.map((each) => each.differs)).toEqual([true, false, true]);
  expect(differingWords("a b", "b")).toEqual([
    { text: "a ", differs: true },
    { text: "b", differs: false },
  ]);
  expect(differingWords("a", "")).toEqual([{ text: "a", differs: true }]);
  const long = "x y ".repeat(2000);
  expect(differingWords(long, `z${long}`)).toEqual([{ text: long, differs: true }]);
});

test("the differing part of a text", () => {
  expect(splitDifference("the answer is 41.", "the answer is 42.")).toEqual(["the answer is ", "41", "."]);
  expect(splitDifference("same", "same")).toEqual(["same", "", ""]);
  expect(splitDifference("", "x")).toEqual(["", "", ""]);
  expect(splitDifference("aaa", "aa").join("")).toBe("aaa");
});

/** Where trajectories of the same task differ. */
import type { TranscriptStep } from "../api";

/** One line of the side-by-side display: the steps with the same index, null where a trajectory has ended. */
export interface AlignedStep {
  index: number;
  steps: (TranscriptStep | null)[];
  /** Whether all trajectories have the same step. */
  same: boolean;
}

export function alignSteps(trajectories: TranscriptStep[][]): AlignedStep[] {
  const length = Math.max(0, ...trajectories.map((steps) => steps.length));
  return Array.from({ length }, (_, index) => {
    const steps = trajectories.map((each) => each[index] ?? null);
    return { index, steps, same: steps.every((step) => sameStep(steps[0] ?? null, step)) };
  });
}

/** The index of the first step that is not the same in all trajectories; null if they are all the same. */
export function firstDifference(aligned: AlignedStep[]): number | null {
  return aligned.find((each) => !each.same)?.index ?? null;
}

/** Whether two steps say and do the same: times, tokens and ids of calls may differ. */
export function sameStep(a: TranscriptStep | null, b: TranscriptStep | null): boolean {
  if (a === null || b === null) return a === b;
  return (
    a.kind === b.kind &&
    a.text === b.text &&
    a.length === b.length &&
    a.calls.length === b.calls.length &&
    a.calls.every((call, index) => {
      const other = b.calls[index];
      return call.name === other?.name && sameArguments(call.arguments, other.arguments);
    })
  );
}

function sameArguments(a: string, b: string): boolean {
  return a === b || canonical(a) === canonical(b);
}

/** JSON with sorted keys and without white space; other text as it is. */
function canonical(text: string): string {
  try {
    return JSON.stringify(sorted(JSON.parse(text)));
  } catch {
    return text;
  }
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (value === null || typeof value !== "object") return value;
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([key, each]) => [key, sorted(each)]));
}

/** A text in three parts: what it has in common with the other at the beginning, what differs, what is common at the end. */
export function splitDifference(text: string, other: string): [string, string, string] {
  if (text === other) return [text, "", ""];
  const most = Math.min(text.length, other.length);
  let start = 0;
  while (start < most && text[start] === other[start]) start += 1;
  let end = 0;
  while (end < most - start && text[text.length - 1 - end] === other[other.length - 1 - end]) end += 1;
  // Whole words are easier to read than parts of them.
  while (start > 0 && /\w/.test(text[start - 1] ?? "")) start -= 1;
  while (end > 0 && /\w/.test(text[text.length - end] ?? "")) end -= 1;
  return [text.slice(0, start), text.slice(start, text.length - end), text.slice(text.length - end)];
}

/** A part of a text, and whether another text has it in the same place. */
export interface Piece {
  text: string;
  differs: boolean;
}

/** Most pairs of words that are compared; finding the words of longer texts takes too long. */
const MOST_PAIRS = 250_000;

/** The words of a text that another text does not have in the same order, and the text between them. */
export function differingWords(text: string, other: string): Piece[] {
  const words = text.match(/\w+|\s+|[^\w\s]/g) ?? [];
  const others = other.match(/\w+|\s+|[^\w\s]/g) ?? [];
  if (words.length * others.length > MOST_PAIRS) return [{ text, differs: true }];
  // The length of the longest common series of words from each pair on.
  const width = others.length + 1;
  const common = new Uint16Array((words.length + 1) * width);
  const at = (row: number, column: number) => common[row * width + column] ?? 0;
  for (let row = words.length - 1; row >= 0; row--) {
    for (let column = others.length - 1; column >= 0; column--) {
      common[row * width + column] =
        words[row] === others[column]
          ? at(row + 1, column + 1) + 1
          : Math.max(at(row + 1, column), at(row, column + 1));
    }
  }
  const pieces: Piece[] = [];
  let column = 0;
  words.forEach((word, row) => {
    while (column < others.length && words[row] !== others[column] && at(row, column + 1) === at(row, column)) column++;
    const differs = column === others.length || word !== others[column];
    if (!differs) column++;
    const last = pieces.at(-1);
    if (last?.differs === differs) last.text += word;
    else pieces.push({ text: word, differs });
  });
  return pieces;
}

/** What Markdown reads as a whole over several lines: code, tables and formulas. */
const BLOCKS = /^ {0,3}(?:```|~~~|\|)|\$\$|\\\[|\\begin\{/m;

/** As `splitDifference` for text with Markdown: the part that differs has whole lines, or paragraphs beside blocks. */
export function splitLines(text: string, other: string): [string, string, string] {
  if (text === other) return [text, "", ""];
  const separator = BLOCKS.test(text) ? "\n\n" : "\n";
  const [before, , after] = splitDifference(text, other);
  const start = Math.max(0, before.lastIndexOf(separator));
  const gap = after.indexOf(separator);
  const end = gap < 0 ? text.length : text.length - after.length + gap;
  return [text.slice(0, start), text.slice(start, end), text.slice(end)];
}

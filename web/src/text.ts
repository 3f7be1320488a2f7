/** Prepares text of models, pages and machines for display. It is only ever shown as text. */

// biome-ignore-start lint/suspicious/noControlCharactersInRegex: the patterns find control characters
/** Terminal codes: control sequences (colours, cursor), operating system commands (titles, links), other escapes. */
const TERMINAL_CODES = /\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]/g;
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;
// biome-ignore-end lint/suspicious/noControlCharactersInRegex: see above
/** Characters that change the direction of the text after them, so that it reads differently from what it is. */
const DIRECTIONS = /[\u202a-\u202e\u2066-\u2069]/g;
const LONE_SURROGATES = /\p{Surrogate}/gu;

/** The text without terminal codes, with visible symbols for control characters and for directions. */
export function cleanText(text: string): string {
  return wellFormed(text)
    .replace(TERMINAL_CODES, "")
    .replace(/\r\n/g, "\n")
    .replace(CONTROLS, controlSymbol)
    .replace(DIRECTIONS, (found) => `‹U+${found.charCodeAt(0).toString(16).toUpperCase()}›`);
}

/** The text with U+FFFD for each half of a character; neither JSON in UTF-8 nor an address can hold them. */
export function wellFormed(text: string): string {
  return text.replace(LONE_SURROGATES, "\ufffd");
}

function controlSymbol(found: string): string {
  const code = found.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  return code === 0x7f ? "␡" : "\ufffd";
}

/** Cut a text into parts of at most `size` characters, after a line break if there is one in the second half. */
export function splitText(text: string, size: number): string[] {
  const parts: string[] = [];
  let start = 0;
  while (text.length - start > size) {
    const line = text.lastIndexOf("\n", start + size - 1) + 1;
    let end = line > start + size / 2 ? line : start + size;
    if (isHighSurrogate(text.charCodeAt(end - 1))) end -= 1;
    parts.push(text.slice(start, end));
    start = end;
  }
  parts.push(text.slice(start));
  return parts;
}

function isHighSurrogate(code: number): boolean {
  return code >= 0xd800 && code <= 0xdbff;
}

/** The beginning of a text: at most `characters` and `lines`. */
export function beginning(text: string, characters: number, lines: number): string {
  const cut = (splitText(text.slice(0, characters + 1), characters)[0] ?? "").slice(0, characters);
  let end = -1;
  for (let line = 0; line < lines; line++) {
    end = cut.indexOf("\n", end + 1);
    if (end < 0) return cut;
  }
  return cut.slice(0, end);
}

/** The end of a text: at most `characters` and `lines`, after the opening line of the code block in which it begins. */
export function ending(text: string, characters: number, lines: number): string {
  let start = text.trimEnd().length;
  for (let line = 0; line < lines && start > 0; line++) start = text.lastIndexOf("\n", start - 1);
  start += 1;
  if (text.length - start > characters) {
    const earliest = text.length - characters;
    start = text.indexOf("\n", earliest) + 1 || earliest;
    if (start === text.length) start = earliest;
    if (isHighSurrogate(text.charCodeAt(start - 1))) start += 1;
  }
  const fences = text.slice(0, start).match(/^ {0,3}(?:```|~~~).*$/gm) ?? [];
  const opening = fences.length % 2 === 1 ? `${fences.at(-1)}\n` : "";
  return opening + text.slice(start);
}

/** A text on one line. */
export function oneLine(text: string, length: number): string {
  const line = cleanText(text.slice(0, length * 4))
    .replace(/\s+/g, " ")
    .trim();
  return line.length > length ? `${splitText(line, length)[0]}…` : line;
}

export type TextFormat = "json" | "table" | "traceback" | "diff" | "markdown" | "plain";

const LONGEST_FORMATTED = 100_000;

/** What the text of a tool's result is. */
export function formatOf(text: string): TextFormat {
  if (text.length > LONGEST_FORMATTED) return "plain";
  if (parseJson(text) !== undefined) return "json";
  if (rowsOf(text) !== null) return "table";
  if (/^Traceback \(most recent call last\):$/m.test(text)) return "traceback";
  if (/^--- .+\n\+\+\+ .+\n@@ /m.test(text)) return "diff";
  if (/^ {0,3}\|.*\|[ \t]*\n {0,3}\|[ \t:|-]+\|[ \t]*$/m.test(text) || /^```/m.test(text)) return "markdown";
  return "plain";
}

/** Whether a text has code outside of code blocks: Markdown would remove its indentation. */
export function isBareCode(text: string): boolean {
  const start = text.slice(0, LONGEST_FORMATTED);
  if (/^ {0,3}(?:```|~~~)/m.test(start)) return false;
  const begins = /^[ \t]*(?:(?:async )?def |class |function |public |fn |func |#include|from \w+ import |import \w)/m;
  return begins.test(start) && /^(?: {2,}|\t)\S/m.test(start);
}

/** Whether a text has formulas or Markdown, so that it reads better when it is drawn. */
export function hasMarkup(text: string): boolean {
  const start = text.slice(0, LONGEST_FORMATTED);
  return (
    /\$[^$\n]+\$|\\[([]|\\(?:begin|boxed)\{|\*\*|`|^ {0,3}(?:#{1,6} |[-*+] |\d+[.)] |\|)/m.test(start) &&
    !isBareCode(start)
  );
}

/** What only LaTeX has: commands, signs with a backslash, powers and indexes in braces, powers of letters. */
const LATEX = /\\(?:[a-zA-Z]|[%{}$,;!])|[\^_]\{|[a-zA-Z)]\^\w/;

/** Whether a text looks like LaTeX without delimiters, as references often are: it has no words outside of commands. */
export function isBareFormula(text: string): boolean {
  if (text.length > 500 || !LATEX.test(text) || /(?<!\\)\$|\n|\\[([]|\\(?:begin|boxed)\{/.test(text)) return false;
  return !/[a-zA-Z]{3}/.test(text.replace(/\\(?:text|mathrm|textbf|mbox)\{[^{}]*\}|\\[a-zA-Z]+/g, " "));
}

/** The value of a JSON object or array; undefined if the text is something else. */
export function parseJson(text: string): unknown {
  const trimmed = text.trim();
  if (!/^[[{]/.test(trimmed) || !/[\]}]$/.test(trimmed)) return undefined;
  try {
    return JSON.parse(trimmed) as unknown;
  } catch {
    return undefined;
  }
}

/** The rows of a text with columns that are separated by tabs; null if it is something else. */
export function rowsOf(text: string): string[][] | null {
  const lines = text.replace(/\n+$/, "").split("\n");
  if (lines.length < 2 || !lines[0]?.includes("\t")) return null;
  const rows = lines.map((line) => line.split("\t"));
  return rows.every((row) => row.length === rows[0]?.length) ? rows : null;
}

/** Marks before the final answer of a longer text, as the scorers look for it: `#### 3`, `\\boxed{3}`, `Answer: 3`. */
const FINAL = /(?:####|\\boxed\b|\banswer(?: is)?:).*$/is;

/** The last line of a text if it is marked as the final answer, otherwise the whole text. */
export function finalPart(text: string): string {
  const lines = text.trimEnd().split("\n");
  const last = lines.length > 1 ? (lines[lines.length - 1] ?? "").trim() : "";
  return FINAL.test(last) ? last : text;
}

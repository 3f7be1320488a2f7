/** Search in an export, which has no index: the page reads the transcripts of small runs, and the rows of large ones. */
import type { ExecutionDetail, ExecutionRef, RolloutRows, SearchHit, SearchResults, TranscriptStep } from "../api";
import { load } from "../source";

/** Transcripts are read for at most so many rollouts. */
export const MOST_SCANNED = 500;
const MOST_HITS = 1000;
const AT_ONCE = 6;
const SNIPPET = 90;
/** Words of at least this many letters find longer ones. */
const PREFIX_LENGTH = 3;

export class QueryProblem extends Error {}

export interface Query {
  /** All of these occur in the text. */
  wanted: RegExp[];
  /** None of these does. */
  excluded: RegExp[];
}

/**
 * Read a query as the server does: words, `"a phrase"`, and `-word` for texts without it.
 *
 * A word also finds longer words that begin with it; a short one only as `a*`. Upper and lower case are the same.
 */
export function parseQuery(text: string): Query {
  if ((text.match(/"/g) ?? []).length % 2 === 1) throw new QueryProblem('A quote (") is not closed.');
  const query: Query = { wanted: [], excluded: [] };
  for (const [, minus, phrase, word] of text.matchAll(/(-?)(?:"([^"]*)"|([^\s"]+))/g)) {
    const words = (phrase ?? word ?? "").match(/[\p{L}\p{N}]+/gu);
    if (words === null) continue;
    const isPrefix = word !== undefined && (word.endsWith("*") || word.length >= PREFIX_LENGTH);
    const pattern = new RegExp(
      `(?<![\\p{L}\\p{N}])${words.join("[^\\p{L}\\p{N}]+")}${isPrefix ? "[\\p{L}\\p{N}]*" : "(?![\\p{L}\\p{N}])"}`,
      "iu",
    );
    (minus === "-" ? query.excluded : query.wanted).push(pattern);
  }
  if (query.wanted.length === 0 && query.excluded.length > 0) {
    throw new QueryProblem("Name at least one word that occurs.");
  }
  return query;
}

/** Where a text matches, with what is around it; null if it does not. */
export function findIn(text: string, query: Query): Pick<SearchHit, "before" | "match" | "after"> | null {
  if (query.wanted.length === 0 || query.excluded.some((pattern) => pattern.test(text))) return null;
  const [first, ...others] = query.wanted;
  const found = first?.exec(text);
  if (!found || !others.every((pattern) => pattern.test(text))) return null;
  const end = found.index + found[0].length;
  const start = Math.max(0, found.index - SNIPPET);
  return {
    before: `${start > 0 ? "…" : ""}${text.slice(start, found.index)}`,
    match: found[0],
    after: `${text.slice(end, end + SNIPPET)}${end + SNIPPET < text.length ? "…" : ""}`,
  };
}

/** All text of a step, as the index has it. */
function textOf(step: TranscriptStep): string {
  const calls = step.calls.map((call) => `${call.name} ${call.arguments}`);
  return [step.text, step.reasoning, ...calls].filter(Boolean).join("\n");
}

/** `reasoning` if a match is there and not in the text of the step. */
function kindOf(step: TranscriptStep, match: string): string {
  return !step.text.includes(match) && step.reasoning.includes(match) ? "reasoning" : step.kind;
}

export function hitsOfExecution(detail: ExecutionDetail, query: Query): SearchHit[] {
  const { number, task, attempt, status, final, ended, score, kind } = detail;
  const execution: ExecutionRef = { number, task, attempt, status, final, ended, score, kind };
  return detail.steps.flatMap((step) => {
    const found = findIn(textOf(step), query);
    return found === null ? [] : [{ execution, step: step.index, kind: kindOf(step, found.match), ...found }];
  });
}

/** The hits in questions, answers and errors. Step -1: the rollout as a whole. */
export function hitsOfRows(rows: RolloutRows, query: Query): SearchHit[] {
  const hits: SearchHit[] = [];
  for (const [row, task] of rows.task.entries()) {
    const number = rows.number[row] ?? 0;
    const execution: ExecutionRef = {
      number,
      task,
      attempt: rows.attempt[row] ?? 1,
      status: rows.status[row] ?? "",
      final: true,
      ended: rows.ended[row] ?? 0,
      score: rows.score[row] ?? null,
      kind: rows.kind[row] ?? "",
    };
    for (const column of ["question", "answer", "error"] as const) {
      const found = findIn(rows[column][row] ?? "", query);
      if (found !== null) hits.push({ execution, step: -1, kind: column, ...found });
    }
  }
  return hits;
}

/** Search an export; `report` gets the hits so far while transcripts are read. */
export async function scanExport(
  run: string,
  text: string,
  report: (results: SearchResults) => void,
  signal: AbortSignal,
): Promise<void> {
  const query = parseQuery(text);
  const rows = await load<RolloutRows>(["runs", run, "rollouts"], {}, signal);
  const numbers = rows.number.filter((number) => number !== null);
  if (rows.task.length > MOST_SCANNED) {
    report(counted(hitsOfRows(rows, query), rows.task.length, rows.task.length));
    return;
  }
  const found = new Map<number, SearchHit[]>();
  const waiting = [...numbers];
  const inOrder = () => numbers.flatMap((number) => found.get(number) ?? []);
  const work = async () => {
    for (let number = waiting.shift(); number !== undefined; number = waiting.shift()) {
      const detail = await load<ExecutionDetail>(["runs", run, "executions", number], {}, signal);
      found.set(number, hitsOfExecution(detail, query));
      if (found.size % 25 === 0) report(counted(inOrder(), found.size, numbers.length));
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  report(counted(inOrder(), numbers.length, numbers.length));
}

function counted(hits: SearchHit[], indexed: number, executions: number): SearchResults {
  return { hits: hits.slice(0, MOST_HITS), total: Math.min(MOST_HITS, hits.length), indexed, executions, problem: "" };
}

/** Filter and order of the list of runs. */
import type { RunRow } from "./api";
import type { Sort } from "./components/DataTable";
import type { BarPart } from "./components/StackedBar";
import { STATUSES } from "./filters";

/** States of a run whose session is active. */
export const LIVE_STATES = ["starting", "running", "pausing", "paused", "stopping"];

/** The results of a run by status, in the order in which they are shown. */
export function statusParts(run: RunRow): BarPart[] {
  return STATUSES.map((state) => ({ state, count: run.statuses[state] ?? 0 }));
}

export function isLive(run: RunRow): boolean {
  return LIVE_STATES.includes(run.state);
}

/** The runs in which all words occur, in an order; without one, as the server sent them. */
export function selectRuns(runs: RunRow[], words: string, sort: Sort | null): RunRow[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const found = runs.filter((run) => {
    const text = [run.name, run.mode, run.model, run.engine, run.state].join("\n").toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
  if (!sort) return found;
  const sign = sort.descending ? -1 : 1;
  return found.sort((a, b) => compare(sortKey(a, sort.column), sortKey(b, sort.column), sign));
}

function sortKey(run: RunRow, column: string): string | number | null {
  if (column === "progress") return run.total > 0 ? run.done / run.total : null;
  const value = run[column as keyof RunRow];
  return typeof value === "string" || typeof value === "number" ? value : null;
}

/** Unknown values are last in both directions. */
function compare(a: string | number | null, b: string | number | null, sign: number): number {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  return sign * (typeof a === "string" ? a.localeCompare(String(b)) : a - Number(b));
}

/** The ends of a bar on which all scores fit: 0 to 1, or more. */
export function scoreRange(runs: RunRow[]): [number, number] {
  const values = runs.flatMap((run) => (run.score === null ? [] : [run.score, ...(run.interval ?? [])]));
  return [Math.min(0, ...values), Math.max(1, ...values)];
}

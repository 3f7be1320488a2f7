/** Filter and order of the list of runs. */
import type { RunRow } from "./api";
import type { Sort } from "./components/DataTable";
import type { BarPart } from "./components/StackedBar";
import { FAILURES, OUTCOMES, VERDICTS } from "./filters";
import type { ColourName } from "./states";

/** States of a run whose session is active. */
export const LIVE_STATES = ["starting", "running", "pausing", "paused", "stopping"];

/** The final results of a run by outcome. */
export function outcomeCounts(run: RunRow): Map<string, number> {
  const counts = new Map([...Object.entries(run.statuses), ...Object.entries(run.verdicts)]);
  const judged = VERDICTS.reduce((sum, verdict) => sum + (run.verdicts[verdict] ?? 0), 0);
  return counts.set("completed", Math.max(0, (run.statuses.completed ?? 0) - judged));
}

/** Parts of a bar, in the order in which they are shown. */
export function outcomeParts(counts: Map<string, number>): BarPart[] {
  return OUTCOMES.map((state) => ({ state, count: counts.get(state) ?? 0 }));
}

/** How many rollouts of a run failed for good. */
export function failureCount(run: RunRow): number {
  return FAILURES.reduce((sum, status) => sum + (run.statuses[status] ?? 0), 0);
}

/** The colour of a run that has ended with failures: not that of one without. Red: half of the rollouts that ended failed. */
export function stateWarning(run: RunRow): ColourName | undefined {
  const failed = failureCount(run);
  if (isLive(run) || failed === 0) return undefined;
  const ended = Object.values(run.statuses).reduce((sum, count) => sum + count, 0);
  return failed >= ended / 2 ? "red" : "orange";
}

/** Whether the score of a run that has ended says little of the run: most of its rollouts were not measured. */
export function isMostlyUnmeasured(run: RunRow): boolean {
  return !isLive(run) && run.measured < run.total / 2;
}

export function isLive(run: RunRow): boolean {
  return LIVE_STATES.includes(run.state);
}

/** The runs in which all words occur, in an order; without one, as the server sent them. */
export function selectRuns(runs: RunRow[], words: string, sort: Sort | null): RunRow[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const found = runs.filter((run) => {
    const text = [run.name, run.mode, run.model, run.data, run.metric, run.engine, run.state].join("\n").toLowerCase();
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

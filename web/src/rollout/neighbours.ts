/** The rollouts before and after one in the table of its run, with the filter and the order of the address. */
import { FAILURES, readFilter } from "../filters";
import type { RolloutTable } from "../rows";
import { parseSort } from "../sorting";

export interface RolloutName {
  task: string;
  attempt: number;
}

export interface Neighbours {
  /** Counted from 1; 0 if the filter hides this rollout. */
  position: number;
  count: number;
  next: RolloutName | undefined;
  previous: RolloutName | undefined;
  nextFailure: RolloutName | undefined;
  previousFailure: RolloutName | undefined;
  nextWrong: RolloutName | undefined;
  previousWrong: RolloutName | undefined;
}

/** Find the neighbours that have a result. If the filter hides the rollout itself, the search begins at the list's start. */
export function neighboursOf(table: RolloutTable, params: URLSearchParams, task: string, attempt: number): Neighbours {
  const rows = table.select(readFilter(params), parseSort(params.get("sort")));
  const own = table.find(task, attempt);
  const place = own === undefined ? -1 : rows.indexOf(own);
  const failures = new Set(FAILURES);
  const isFailure = (row: number) => failures.has(table.statusOf(row));
  const isWrong = (row: number) => table.isWrong(row);
  const search = (direction: 1 | -1, matches: (row: number) => boolean = () => true): RolloutName | undefined => {
    for (let index = place + direction; index >= 0 && index < rows.length; index += direction) {
      const row = rows[index] as number;
      const hasResult = !Number.isNaN(table.number("number", row));
      if (hasResult && matches(row)) {
        return { task: table.text("task", row), attempt: table.number("attempt", row) };
      }
    }
    return undefined;
  };
  return {
    position: place + 1,
    count: rows.length,
    next: search(1),
    previous: search(-1),
    nextFailure: search(1, isFailure),
    previousFailure: search(-1, isFailure),
    nextWrong: search(1, isWrong),
    previousWrong: search(-1, isWrong),
  };
}

/** Pools, agent servers and engines: order of tables, and who holds a machine. */
import type { Sort } from "./components/DataTable";

/** The rows in an order; without one, as the server sent them. Unknown values are last in both directions. */
export function sortRows<T extends object>(rows: T[], sort: Sort | null): T[] {
  if (!sort) return rows;
  const sign = sort.descending ? -1 : 1;
  const value = (row: T) => (row as Record<string, unknown>)[sort.column];
  return [...rows].sort((first, second) => {
    const [a, b] = [value(first), value(second)];
    if (a === null || a === undefined || b === null || b === undefined) return Number(a == null) - Number(b == null);
    return sign * (typeof a === "number" ? a - Number(b) : compareNames(String(a), String(b)));
  });
}

/** `m2` is before `m10`. */
function compareNames(a: string, b: string): number {
  return a.localeCompare(b, "en", { numeric: true });
}

export interface Holder {
  /** `host:pid`. */
  worker: string;
  task: string;
  attempt: number;
}

/** The worker and the rollout of a holder such as `host:123 task#2`; null if it is not a rollout of a run. */
export function rolloutOf(holder: string): Holder | null {
  const found = /^(\S+:\d+) (.+?)(?:#([1-9]\d*))?$/s.exec(holder);
  if (!found) return null;
  return { worker: found[1] ?? "", task: found[2] ?? "", attempt: Number(found[3] ?? 1) };
}

const ORDER = ["leased", "free", "resetting", "booting", "ready", "started", "quarantined", "lost", "stopped"];

/** Counts by state in a fixed order, those that exist. */
export function orderedStates(counts: Record<string, number>): { state: string; count: number }[] {
  return Object.entries(counts)
    .map(([state, count]) => ({ state, count }))
    .filter((part) => part.count > 0)
    .sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state));
}

/** Filters of the table of rollouts in the address. */
import type { Params } from "./router";
import { EVERYTHING, type RolloutFilter } from "./rows";

/** Verdicts on completed rollouts with a score. */
export const VERDICTS = ["right", "partly right", "wrong"];
/** Outcomes of rollouts, in the order in which they are shown. `running` and `pending` are those without a result. */
export const OUTCOMES = [
  ...VERDICTS,
  "completed",
  "failed",
  "timed out",
  "unscored",
  "infrastructure",
  "cancelled",
  "running",
  "pending",
];
/** The statuses of failures. */
export const FAILURES = ["failed", "timed out", "unscored", "infrastructure"];

export function readFilter(params: URLSearchParams): RolloutFilter {
  const from = readNumber(params.get("from"));
  const to = readNumber(params.get("to"));
  return {
    words: params.get("q") ?? "",
    statuses: (params.get("status") ?? "").split(",").filter((word) => OUTCOMES.includes(word)),
    kind: params.get("kind") ?? "",
    message: params.get("error") ?? "",
    score: readScore(params.get("score")),
    cut: params.get("cut") === "1",
    time: from !== null && to !== null && from <= to ? { from, to } : null,
  };
}

/** The parameters of a filter; those that it does not use are null. */
export function filterParams(filter: RolloutFilter): Params {
  return {
    q: filter.words || null,
    status: filter.statuses.join(",") || null,
    kind: filter.kind || null,
    error: filter.message || null,
    score:
      typeof filter.score === "object" && filter.score ? `${filter.score.low}..${filter.score.high}` : filter.score,
    cut: filter.cut ? "1" : null,
    from: filter.time?.from ?? null,
    to: filter.time?.to ?? null,
  };
}

/** The parameters of the table, filter and order, which links to a rollout and back to its run keep. */
export function tableParams(params: URLSearchParams): Record<string, string> {
  return Object.fromEntries([...params].filter(([name]) => name === "sort" || name in NO_FILTER));
}

/** The parameters without any filter. */
export const NO_FILTER: Params = filterParams(EVERYTHING);

export function isFiltered(filter: RolloutFilter): boolean {
  return Object.values(filterParams(filter)).some((value) => value !== null);
}

function readScore(text: string | null): RolloutFilter["score"] {
  if (text === "solved" || text === "unsolved") return text;
  const [low, high] = (text ?? "").split("..").map(readNumber);
  return low !== undefined && low !== null && high !== undefined && high !== null ? { low, high } : null;
}

function readNumber(text: string | null): number | null {
  return text === null || text.trim() === "" || !Number.isFinite(Number(text)) ? null : Number(text);
}

/** Hits of a search, grouped by execution. */
import type { ExecutionRef, SearchHit, SearchResults } from "../api";

export interface HitGroup {
  execution: ExecutionRef;
  hits: SearchHit[];
}

/** Groups in the order of their best hits; the hits of a group in the order of the steps. */
export function groupHits(hits: SearchHit[]): HitGroup[] {
  const groups = new Map<string, HitGroup>();
  for (const hit of hits) {
    const key = `${hit.execution.number} ${hit.execution.task}#${hit.execution.attempt}`;
    const group = groups.get(key) ?? { execution: hit.execution, hits: [] };
    group.hits.push(hit);
    groups.set(key, group);
  }
  for (const group of groups.values()) group.hits.sort((a, b) => a.step - b.step);
  return [...groups.values()];
}

const KIND_ORDER = [
  "model",
  "reasoning",
  "tool",
  "user",
  "system",
  "agent",
  "program",
  "error",
  "judge",
  "score",
  "machine",
];

/** The kinds of the hits with their numbers, in a fixed order. */
export function countKinds(hits: SearchHit[]): [string, number][] {
  const counts = new Map<string, number>();
  for (const hit of hits) counts.set(hit.kind, (counts.get(hit.kind) ?? 0) + 1);
  const place = (kind: string) => (KIND_ORDER.includes(kind) ? KIND_ORDER.indexOf(kind) : KIND_ORDER.length);
  return [...counts].sort(([a], [b]) => place(a) - place(b) || (a < b ? -1 : 1));
}

/** What a kind is called on the page. */
export function kindLabel(kind: string): string {
  const labels: Record<string, string> = {
    model: "model text",
    tool: "tool results",
    user: "user",
    system: "system prompt",
    agent: "agent's code",
    error: "errors",
    score: "scores",
  };
  return labels[kind] ?? kind;
}

export function isComplete(results: SearchResults): boolean {
  return results.indexed >= results.executions;
}

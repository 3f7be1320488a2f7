/** The conversation as turns: a message of the model with its tool calls and their results belong together. */
import type { ToolCall, TranscriptStep } from "../api";

export interface CallWithResult {
  call: ToolCall;
  /** Undefined if the rollout ended before the tool answered. */
  result: TranscriptStep | undefined;
}

export interface TurnItem {
  step: TranscriptStep;
  calls: CallWithResult[];
}

export interface Turn {
  /** The index of its first step; also its key. */
  first: number;
  /** 0: before the first message of the model. */
  turn: number;
  items: TurnItem[];
  /** All steps, the results of tools included. */
  steps: TranscriptStep[];
  /** Of the first turn of a branch: what it shares with another one. Empty otherwise. */
  branch: string;
}

const SPEAKS = new Set(["model", "agent"]);

/** Group steps. A result belongs to the call with its id in the last message before it; ids may repeat in later turns. */
export function groupTurns(steps: TranscriptStep[]): Turn[] {
  const turns: Turn[] = [];
  let open: CallWithResult[] = [];
  let current: Turn | undefined;
  for (const step of steps) {
    const begins = step.kind === "branch";
    if (current === undefined || step.turn !== current.turn || begins || SPEAKS.has(step.kind)) {
      current = { first: step.index, turn: step.turn, items: [], steps: [], branch: begins ? step.text : "" };
      turns.push(current);
    }
    current.steps.push(step);
    if (begins) continue;
    const waiting = step.kind === "tool" ? open.find((one) => !one.result && one.call.id === step.call) : undefined;
    if (waiting) {
      waiting.result = step;
      continue;
    }
    const item = { step, calls: step.calls.map((call): CallWithResult => ({ call, result: undefined })) };
    if (SPEAKS.has(step.kind)) open = item.calls;
    current.items.push(item);
  }
  return turns;
}

/** The turn with a step. */
export function turnOf(turns: Turn[], step: number): Turn | undefined {
  return turns.find((turn) => turn.steps.some((one) => one.index === step));
}

export const FILTERS = ["errors", "tools", "reasoning", "images"] as const;
export type Filter = (typeof FILTERS)[number];

/** The filters of an address: `errors,tools`. */
export function parseFilters(text: string | null): Filter[] {
  const named = new Set((text ?? "").split(","));
  return FILTERS.filter((filter) => named.has(filter));
}

export function matchesFilter(step: TranscriptStep, filter: Filter): boolean {
  switch (filter) {
    case "errors":
      return step.error || step.kind === "error";
    case "tools":
      return step.kind === "tool" || step.calls.length > 0;
    case "reasoning":
      return step.reasoning !== "";
    case "images":
      return step.images.length > 0 || step.pointers.length > 0;
  }
}

/** How many steps each filter shows; a call and its result count once. */
export function filterCounts(steps: TranscriptStep[]): Record<Filter, number> {
  const count = (filter: Filter) => steps.filter((step) => matchesFilter(step, filter)).length;
  const calls = steps.reduce((sum, step) => sum + step.calls.length, 0);
  const images = steps.reduce((sum, step) => sum + step.images.length, 0);
  return { errors: count("errors"), tools: calls, reasoning: count("reasoning"), images };
}

/** The turns with the items that at least one of the filters selects; all of them without a filter. */
export function filterTurns(turns: Turn[], filters: Filter[]): Turn[] {
  if (filters.length === 0) return turns;
  const matches = (step: TranscriptStep) => filters.some((filter) => matchesFilter(step, filter));
  return turns
    .map((turn) => ({
      ...turn,
      items: turn.items.filter(
        (item) => matches(item.step) || item.calls.some((call) => call.result !== undefined && matches(call.result)),
      ),
    }))
    .filter((turn) => turn.items.length > 0 || turn.branch !== "");
}

/** Seconds that the steps of a turn took; null if that is unknown. A program runs during all turns, so it does not count. */
export function turnSeconds(turn: Turn): number | null {
  const known = turn.steps.filter((step) => step.seconds !== null && step.kind !== "program");
  return known.length === 0 ? null : known.reduce((sum, step) => sum + (step.seconds ?? 0), 0);
}

export function hasError(turn: Turn): boolean {
  return turn.steps.some((step) => matchesFilter(step, "errors"));
}

/** The number after (or before) `current`; without a current one, the first (or the last). */
export function neighbour(numbers: number[], current: number | null, direction: 1 | -1): number | undefined {
  if (current === null) return direction === 1 ? numbers[0] : numbers.at(-1);
  return direction === 1 ? numbers.find((one) => one > current) : numbers.findLast((one) => one < current);
}

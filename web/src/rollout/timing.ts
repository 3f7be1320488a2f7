/** The times of a rollout as bars: one row for each step, and what the rollout did from its start. */
import type { ExecutionDetail, TranscriptStep } from "../api";

export interface Bar {
  /** A word of `RolloutActivity`, so that bars have the colours of the timeline. */
  activity: string;
  /** Seconds after the start of the execution. */
  start: number;
  end: number;
}

export interface WaterfallRow {
  step: TranscriptStep;
  bars: Bar[];
}

/** The bars of a step: a request waits for the endpoint, then the endpoint generates; a tool acts. */
export function barsOf(step: TranscriptStep): Bar[] {
  if (step.at === null || step.seconds === null) return [];
  const start = Math.max(0, step.at);
  const end = start + Math.max(0, step.seconds);
  if (step.kind === "model" || step.kind === "judge") {
    const waited = Math.min(Math.max(0, step.waited), end - start);
    const bars = [{ activity: "generating", start: start + waited, end }];
    return waited > 0 ? [{ activity: "waiting for the endpoint", start, end: start + waited }, ...bars] : bars;
  }
  const activity = { tool: "acting", score: "scoring", machine: "waiting for a machine" }[step.kind] ?? "working";
  return [{ activity, start, end }];
}

export function waterfallRows(steps: TranscriptStep[]): WaterfallRow[] {
  return steps.map((step) => ({ step, bars: barsOf(step) })).filter((row) => row.bars.length > 0);
}

/** What the rollout did, one interval after the other. */
export function activityBars(activity: [string, number][]): Bar[] {
  const bars: Bar[] = [];
  let start = 0;
  for (const [name, seconds] of activity) {
    const end = start + Math.max(0, seconds);
    bars.push({ activity: name, start, end });
    start = end;
  }
  return bars;
}

/** Seconds from the start to the last known moment. */
export function lengthOf(detail: Pick<ExecutionDetail, "activity" | "steps" | "seconds" | "waited">): number {
  let longest = activityBars(detail.activity).at(-1)?.end ?? 0;
  for (const step of detail.steps) longest = Math.max(longest, barsOf(step).at(-1)?.end ?? 0);
  return longest || detail.seconds + detail.waited || 1;
}

/** Seconds of each activity, the longest first. */
export function totals(bars: Bar[]): { activity: string; seconds: number }[] {
  const sums = new Map<string, number>();
  for (const bar of bars) sums.set(bar.activity, (sums.get(bar.activity) ?? 0) + bar.end - bar.start);
  return [...sums].map(([activity, seconds]) => ({ activity, seconds })).sort((a, b) => b.seconds - a.seconds);
}

/** Round moments for an axis, at most about `count` of them. */
export function ticks(length: number, count: number): number[] {
  const rough = length / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10) * power;
  const found: number[] = [];
  for (let index = 0; index * step <= length * 1.0001; index++) found.push(index * step);
  return found;
}

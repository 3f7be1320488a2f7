/** Loads the comparison of runs; an export has files for pairs only, which are merged here. */
import { useEffect, useState } from "preact/hooks";
import type { Flip, PairedDifference, RolloutRows, RunComparison } from "../api";
import { load, settings } from "../source";

/** Scores that differ by less are equal, as in `paragent.store.summary`. */
export const CHANGE = 1e-9;

export async function loadComparison(runs: string[]): Promise<RunComparison> {
  if (!settings.static) return load(["compare"], { runs: runs.join(",") });
  const [baseline = "", ...others] = runs;
  const pairs = await Promise.all(others.map((other) => loadPair(baseline, other)));
  if (pairs.length === 1 && pairs[0] !== undefined) return pairs[0];
  const scores = await Promise.all(runs.map((run) => loadScores(run)));
  return mergePairs(pairs, scores);
}

/** The file of two runs is named in the order of their names, whichever is the baseline. */
async function loadPair(baseline: string, other: string): Promise<RunComparison> {
  const pair = await load<RunComparison>(["compare"], { runs: [baseline, other].sort().join(",") });
  return pair.runs[0]?.name === baseline ? pair : reversed(pair);
}

/** The comparison of two runs with the other one as the baseline. */
export function reversed(pair: RunComparison): RunComparison {
  const [baseline] = pair.runs;
  const differences = pair.differences.map(
    (one): PairedDifference => ({
      run: baseline?.name ?? "",
      pairs: one.pairs,
      mean: one.baseline_mean,
      baseline_mean: one.mean,
      difference: -one.difference,
      interval: [-one.interval[1], -one.interval[0]],
      better: one.worse,
      worse: one.better,
      only_here: one.only_baseline,
      only_baseline: one.only_here,
    }),
  );
  const flips = pair.flips.map((flip) => ({
    ...flip,
    task: flip.ids[1] || flip.task,
    scores: [...flip.scores].reverse(),
    executions: [...flip.executions].reverse(),
    ids: [...flip.ids].reverse(),
  }));
  return { runs: [...pair.runs].reverse(), differences, flips, common: pair.common };
}

/** The mean score of each task of a run, the beginning of its question, and the execution of its first attempt. */
export type TaskScores = Map<string, { score: number | null; question: string; execution: number | null }>;

/** Failures of the agent, which count as 0. */
const ZERO = ["failed", "timed out"];

async function loadScores(run: string): Promise<TaskScores> {
  return taskScores(await load<RolloutRows>(["runs", run, "rollouts"]));
}

export function taskScores(rows: RolloutRows): TaskScores {
  const found = new Map<string, { sum: number; count: number; question: string; execution: number | null }>();
  for (const [row, task] of rows.task.entries()) {
    const first = { sum: 0, count: 0, question: rows.question[row] ?? "", execution: rows.number[row] ?? null };
    const known = found.get(task) ?? first;
    const status = rows.status[row] ?? "";
    const score = rows.score[row] ?? (ZERO.includes(status) ? 0 : null);
    if (score !== null && (status === "completed" || ZERO.includes(status))) {
      known.sum += score;
      known.count += 1;
    }
    found.set(task, known);
  }
  return new Map(
    [...found].map(([task, { sum, count, question, execution }]) => [
      task,
      { score: count ? sum / count : null, question, execution },
    ]),
  );
}

/** One comparison from those of each run with the first one. A task that a pair does not name has the same id in its runs. */
export function mergePairs(pairs: RunComparison[], scores: TaskScores[]): RunComparison {
  const flips = new Map<string, Flip>();
  const others = pairs.map((pair) => new Map(pair.flips.map((flip) => [flip.task, flip.ids[1] ?? ""])));
  for (const pair of pairs) {
    for (const { task, question } of pair.flips) {
      const names = [task, ...others.map((known) => known.get(task) ?? task)];
      const here = scores.map((each, index) => {
        const found = each.get(names[index] ?? "");
        return found?.question === question ? found : undefined;
      });
      flips.set(task, {
        task,
        question,
        scores: here.map((each) => each?.score ?? null),
        executions: here.map((each) => each?.execution ?? null),
        ids: here.map((each, index) => (each ? (names[index] ?? "") : "")),
      });
    }
  }
  const common = [...(scores[0]?.keys() ?? [])].filter((task) => scores.every((each) => each.has(task))).length;
  return {
    runs: pairs.flatMap((pair, index) => (index === 0 ? pair.runs : pair.runs.slice(1))),
    differences: pairs.flatMap((pair) => pair.differences),
    flips: [...flips.values()],
    common,
  };
}

/** How a task differs from the baseline: in any of the other runs. */
export function isBetter(flip: Flip): boolean {
  return changes(flip).some((change) => change > CHANGE);
}

export function isWorse(flip: Flip): boolean {
  return changes(flip).some((change) => change < -CHANGE);
}

/** The largest change from the baseline, with its sign; 0 if it cannot be told. */
export function largestChange(flip: Flip): number {
  return changes(flip).reduce((largest, change) => (Math.abs(change) > Math.abs(largest) ? change : largest), 0);
}

function changes(flip: Flip): number[] {
  const [baseline = null, ...others] = flip.scores;
  return baseline === null ? [] : others.flatMap((score) => (score === null ? [] : [score - baseline]));
}

export interface LoadedComparison {
  data: RunComparison | undefined;
  error: string;
}

export function useComparison(runs: string[]): LoadedComparison {
  const key = runs.join("\n");
  const [state, setState] = useState<LoadedComparison & { key: string }>({ key: "", data: undefined, error: "" });
  useEffect(() => {
    let isCurrent = true;
    if (runs.length < 2) return;
    loadComparison(runs).then(
      (data) => isCurrent && setState({ key, data, error: "" }),
      (error: Error) => isCurrent && setState({ key, data: undefined, error: error.message }),
    );
    return () => {
      isCurrent = false;
    };
  }, [key]);
  return state.key === key ? state : { data: undefined, error: "" };
}

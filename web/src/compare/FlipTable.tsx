import { useMemo } from "preact/hooks";
import type { Flip, RunComparison } from "../api";
import { type DataColumn, DataTable, shareByLength, shareOfIds } from "../components/DataTable";
import { Message } from "../components/Message";
import { counted, formatNumber, formatScore } from "../format";
import { href, setParams, useRoute } from "../router";
import { CHANGE, isBetter, isWorse, largestChange } from "./comparison";
import { signed } from "./RunFigures";

/** The server sends no more. */
const MOST_FLIPS = 5000;
const FILTERS: { key: string; label: string; test: (flip: Flip) => boolean }[] = [
  { key: "", label: "All", test: () => true },
  { key: "better", label: "Better", test: isBetter },
  { key: "worse", label: "Worse", test: isWorse },
];

/** The flips that the address asks for, in its order. */
export function chosenFlips(flips: Flip[], params: URLSearchParams): Flip[] {
  const test = FILTERS.find((filter) => filter.key === (params.get("show") ?? ""))?.test ?? (() => true);
  const words = (params.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const found = flips.filter((flip) => {
    const text = `${flip.task}\n${flip.question}`.toLowerCase();
    return test(flip) && words.every((word) => text.includes(word));
  });
  const sort = readSort(params.get("sort"));
  const sign = sort.descending ? -1 : 1;
  const value = (flip: Flip): number | string => {
    if (sort.column === "task") return flip.task;
    if (sort.column === "change") return largestChange(flip);
    return flip.scores[Number(sort.column)] ?? Number.NEGATIVE_INFINITY;
  };
  return found
    .map((flip): [Flip, number | string] => [flip, value(flip)])
    .sort(([, a], [, b]) => sign * (typeof a === "string" ? compareTexts(a, String(b)) : a - Number(b)))
    .map(([flip]) => flip);
}

const collator = new Intl.Collator("en", { numeric: true });
const compareTexts = (a: string, b: string) => collator.compare(a, b);

function readSort(text: string | null): { column: string; descending: boolean } {
  const name = text ?? "change";
  return { column: name.replace(/^-/, ""), descending: name.startsWith("-") };
}

/** The tasks whose score differs between the runs. */
export function FlipTable({ comparison, runs }: { comparison: RunComparison; runs: string[] }) {
  const { params } = useRoute();
  const key = params.toString();
  const rows = useMemo(() => chosenFlips(comparison.flips, params), [comparison, key]);
  const counts = useMemo(() => FILTERS.map((filter) => comparison.flips.filter(filter.test).length), [comparison]);
  const columns = useMemo(() => makeColumns(runs, comparison.flips), [runs.join(), comparison]);
  const shown = params.get("show") ?? "";
  return (
    <section class="panel" aria-label="Tasks that differ">
      <header class="compare-head">
        <h2>Tasks that differ</h2>
        <div class="compare-filters">
          {FILTERS.map((filter, index) => (
            <button
              type="button"
              class="button"
              key={filter.key}
              aria-pressed={shown === filter.key}
              onClick={() => setParams({ show: filter.key })}
            >
              {filter.label} <span class="soft">{formatNumber(counts[index])}</span>
            </button>
          ))}
        </div>
        <input
          type="search"
          placeholder="Task or question"
          aria-label="Filter by task or question"
          value={params.get("q") ?? ""}
          onInput={(event) => setParams({ q: event.currentTarget.value })}
        />
        <span class="soft compare-count">
          {formatNumber(rows.length)} of {counted(comparison.flips.length, "task")}
          {comparison.flips.length >= MOST_FLIPS && " with the largest differences"};{" "}
          {counted(comparison.common, "task")} in all runs
        </span>
      </header>
      <DataTable
        label="Tasks that differ"
        columns={columns}
        rows={rows}
        rowKey={(flip) => flip.task}
        rowHref={(flip) => href(["compare"], { ...Object.fromEntries(params), task: flip.task, attempt: null })}
        sort={readSort(params.get("sort"))}
        onSort={(sort) => setParams({ sort: sort && `${sort.descending ? "-" : ""}${sort.column}` })}
        empty={
          <Message>
            {comparison.common === 0 && comparison.differences.length === 0
              ? "These runs have no measured task in common. Compare runs of the same data."
              : comparison.flips.length === 0
                ? "All common tasks have the same score."
                : "No task matches."}
          </Message>
        }
      />
    </section>
  );
}

function makeColumns(runs: string[], flips: Flip[]): DataColumn<Flip>[] {
  const tasks = flips.map((flip) => flip.task);
  const questions = flips.map((flip) => flip.question);
  return [
    {
      id: "task",
      title: "Task",
      width: shareOfIds(tasks, 24, 70),
      cell: (flip) => <span title={flip.task}>{flip.task}</span>,
      link: true,
      sortable: true,
    },
    {
      id: "question",
      title: "Question",
      width: shareByLength(questions, 110, 70),
      cell: (flip) => (
        <span class="soft" title={flip.question}>
          {flip.question}
        </span>
      ),
    },
    ...runs.map(
      (run, index): DataColumn<Flip> => ({
        id: String(index),
        title: run,
        hint: index === 0 ? `${run} (baseline)` : run,
        width: `${Math.min(120, Math.max(64, 8 * run.length))}px`,
        numeric: true,
        sortable: true,
        cell: (flip) => <ScoreCell flip={flip} index={index} />,
      }),
    ),
    {
      id: "change",
      title: "Change",
      hint: "The largest difference from the baseline",
      width: "76px",
      numeric: true,
      sortable: true,
      cell: (flip) => signed(largestChange(flip), 2),
    },
  ];
}

function ScoreCell({ flip, index }: { flip: Flip; index: number }) {
  const score = flip.scores[index] ?? null;
  const baseline = flip.scores[0] ?? null;
  const change = index === 0 || score === null || baseline === null ? 0 : score - baseline;
  if (Math.abs(change) <= CHANGE) return <>{formatScore(score)}</>;
  const word = change > 0 ? "better" : "worse";
  return (
    <span class={word}>
      <span aria-hidden="true">{change > 0 ? "▲" : "▼"}</span> {formatScore(score)}
      <span class="visually-hidden"> {word}</span>
    </span>
  );
}

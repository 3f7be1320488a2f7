import { useEffect, useMemo, useState } from "preact/hooks";
import { type DataColumn, DataTable, shareByLength, shareOfIds, TOP_BAR } from "../../components/DataTable";
import { Message } from "../../components/Message";
import { StateLabel } from "../../components/StateLabel";
import { tableParams } from "../../filters";
import {
  formatClock,
  formatCompact,
  formatDuration,
  formatNumber,
  formatScore,
  formatTime,
  UNKNOWN,
} from "../../format";
import { href, parseRoute, setParams } from "../../router";
import { type RolloutTable, verdictOf } from "../../rows";
import { parseSort, sortText } from "../../sorting";
import { stateColour } from "../../states";
import { beginning, finalPart } from "../../text";
import type { Control } from "./RunControls";

/** The height of the bar above the table. */
const TOOLBAR = 46;

interface RolloutListProps {
  run: string;
  table: RolloutTable;
  rows: Uint32Array;
  /** Changes with the content of the table. */
  version: number;
  sort: string | null;
  attempts: number;
  /** With it, rows have buttons that cancel and retry. */
  control: Control | null;
  isLoading: boolean;
}

/** The table of rollouts. */
export function RolloutList({ run, table, rows, version, sort, attempts, control, isLoading }: RolloutListProps) {
  const isWide = useIsWide();
  // The page of a rollout goes to the next one of this list.
  const kept = tableParams(parseRoute(window.location.hash).params);
  const shares = useMemo(() => textShares(table, attempts), [table, version, attempts]);
  const columns = useMemo(
    () => rolloutColumns(table, attempts, isWide, control, shares),
    [table, attempts, isWide, control === null, control?.isBusy, JSON.stringify(shares)],
  );
  return (
    <DataTable
      label="Rollouts"
      columns={columns}
      rows={rows}
      revision={version}
      rowKey={(row) => row}
      rowHref={(row) => href(["run", run, "rollout", table.text("task", row), table.number("attempt", row)], kept)}
      rowHeight={30}
      stickyTop={TOP_BAR + TOOLBAR}
      sort={parseSort(sort)}
      onSort={(next) => setParams({ sort: sortText(next) })}
      empty={
        isLoading ? <Message kind="loading">Loading…</Message> : <Message>No rollout matches these filters.</Message>
      }
    />
  );
}

interface TextShares {
  status: string;
  task: string;
  question: string;
  /** Null: no task has a reference. */
  reference: string | null;
  ending: string;
}

/** The widths of the columns of text. */
function textShares(table: RolloutTable, attempts: number): TextShares {
  // Most tables have a long text in one of the first rows: the others are not looked at.
  function* each(text: (row: number) => string) {
    for (let row = 0; row < table.count; row++) yield text(row);
  }
  const task = (row: number) => `${table.text("task", row)}${attempts > 1 ? ` #${attempts}` : ""}`;
  const ending = (row: number) => table.text("error", row) || finalPart(table.text("answer", row));
  const reference = (row: number) => referenceOf(table, row);
  return {
    status: `${Math.max(72, 20 + 8 * longestOf(table.outcomeCounts()))}px`,
    task: shareOfIds(each(task), LONG_ID, 70),
    question: shareByLength(
      each((row) => table.text("question", row)),
      LONG_TEXT,
      120,
    ),
    reference: table.hasReferences() ? shareByLength(each(reference), LONG_ID, 76) : null,
    ending: shareByLength(each(ending), LONG_TEXT, 130),
  };
}

/** The characters of the longest word that has a count. */
function longestOf(counts: Map<string, number>): number {
  return Math.max(0, ...[...counts].map(([word, count]) => (count > 0 ? word.length : 0)));
}

/** The reference, or the final value at its end. */
function referenceOf(table: RolloutTable, row: number): string {
  return finalPart(table.text("reference", row)).replace(/^####\s*/, "");
}

/** Most characters of ids and references, and of questions and answers, for which their column is made wider. */
const LONG_ID = 24;
const LONG_TEXT = 36;

function rolloutColumns(
  table: RolloutTable,
  attempts: number,
  isWide: boolean,
  control: Control | null,
  shares: TextShares,
): DataColumn<number>[] {
  const hasReferences = shares.reference !== null;
  const figure = (id: "turns" | "tool_calls" | "executions", title: string, width: string, hint?: string) => ({
    id,
    title,
    width,
    numeric: true,
    descendingFirst: true,
    ...(hint ? { hint } : {}),
    cell: (row: number) => known(table.number(id, row), (value) => formatNumber(value), hasResult(row)),
  });
  const hasResult = (row: number) => !Number.isNaN(table.number("number", row));
  const all: (DataColumn<number> | null)[] = [
    { id: "status", title: "Status", width: shares.status, cell: (row) => <StateLabel state={table.outcomeOf(row)} /> },
    {
      id: "task",
      title: "Task",
      width: shares.task,
      link: true,
      cell: (row) => (
        <span title={table.text("task", row)}>
          {table.text("task", row)}
          {attempts > 1 && <span class="attempt"> #{table.number("attempt", row)}</span>}
        </span>
      ),
    },
    {
      id: "score",
      title: "Score",
      width: "56px",
      numeric: true,
      descendingFirst: true,
      cell: (row) => <ScoreCell score={table.number("score", row)} />,
    },
    {
      id: "question",
      title: "Question",
      width: shares.question,
      cell: (row) => <Clipped text={table.text("question", row)} />,
    },
    shares.reference !== null
      ? {
          id: "reference",
          title: "Reference",
          width: shares.reference,
          cell: (row) => <Reference table={table} row={row} />,
        }
      : null,
    {
      id: "answer",
      title: "Answer or error",
      width: shares.ending,
      cell: (row) => <Ending table={table} row={row} />,
    },
    isWide || !hasReferences ? figure("turns", "Turns", "46px") : null,
    isWide ? figure("tool_calls", "Tools", "46px", "Tool calls") : null,
    {
      id: "tokens",
      title: "Tokens",
      width: "54px",
      numeric: true,
      descendingFirst: true,
      hint: "Input and output",
      cell: (row) => known(table.number("tokens", row), formatCompact, hasResult(row)),
    },
    {
      id: "seconds",
      title: "Time",
      width: "58px",
      numeric: true,
      descendingFirst: true,
      hint: "Working time, without waiting for machines and the endpoint",
      cell: (row) => known(table.number("seconds", row), formatDuration, hasResult(row)),
    },
    isWide
      ? {
          id: "waited",
          title: "Waited",
          width: "58px",
          numeric: true,
          descendingFirst: true,
          cell: (row) => known(table.number("waited", row) || Number.NaN, formatDuration, hasResult(row)),
        }
      : null,
    isWide ? figure("executions", "Tries", "44px", "Executions, retries included") : null,
    isWide
      ? {
          id: "machine",
          title: "Machine or worker",
          width: "minmax(90px, 12fr)",
          sortable: false,
          cell: (row) => <span class="soft">{table.text("machine", row) || table.text("worker", row)}</span>,
        }
      : null,
    {
      id: "ended",
      title: "Ended",
      width: "66px",
      numeric: true,
      descendingFirst: true,
      cell: (row) => {
        const ended = table.number("ended", row);
        return <span title={formatTime(ended)}>{formatClock(ended)}</span>;
      },
    },
    control
      ? {
          id: "actions",
          title: "Control",
          width: "62px",
          sortable: false,
          cell: (row) => <RowAction table={table} row={row} control={control} />,
        }
      : null,
  ];
  return all.filter((column) => column !== null).map((column) => ({ sortable: true, ...column }));
}

function known(value: number, format: (value: number) => string, isKnown: boolean): string {
  return isKnown && !Number.isNaN(value) ? format(value) : UNKNOWN;
}

/** Text that is cut to the width of its column; the whole text is its tooltip. */
function Clipped({ text, shown = text, class: name = "" }: { text: string; shown?: string; class?: string }) {
  return (
    <span class={name} title={text}>
      {shown}
    </span>
  );
}

function ScoreCell({ score }: { score: number }) {
  if (Number.isNaN(score)) return <>{UNKNOWN}</>;
  return (
    <span class="verdict" style={{ "--colour": `var(${stateColour(verdictOf(score) ?? "")})` }}>
      {formatScore(score)}
    </span>
  );
}

/** The end of a text, which is cut at its beginning: the end of an answer decides its score. */
function Tail({ text }: { text: string }) {
  return (
    <span class="tail">
      <bdi dir="ltr">{text}</bdi>
    </span>
  );
}

/** The end of a reference, as of an answer: they are compared with each other. */
function Reference({ table, row }: { table: RolloutTable; row: number }) {
  return (
    <span class="answer-end" title={table.text("reference", row)}>
      <Tail text={referenceOf(table, row)} />
    </span>
  );
}

/** How a conversation ended whose last reply is the answer, also an empty one. */
const ANSWERED = "answered";

/** The answer; the error of a failure; what a rollout is doing that is being executed. */
function Ending({ table, row }: { table: RolloutTable; row: number }) {
  const activity = table.activityOf(row);
  if (activity) {
    return (
      <span class="activity">
        {activity.activity} <span class="soft">{formatDuration(activity.since)}</span>
      </span>
    );
  }
  const error = table.text("error", row);
  if (error) return <Clipped class="row-error" text={error} shown={beginning(error, error.length, 1)} />;
  const answer = table.text("answer", row);
  const ending = table.text("ending", row);
  const wrong = table.isWrong(row) ? "wrong-answer" : "";
  const shown = finalPart(answer);
  if (!table.isCut(row)) {
    if (!answer) return <span class="soft">{ending === ANSWERED ? "no answer" : ending}</span>;
    return (
      <span class={`answer-end ${wrong}`} title={answer}>
        <Tail text={shown} />
      </span>
    );
  }
  return (
    <span class={`answer-end ${wrong}`} title={`${ending}: ${answer}`}>
      <span class="cut">{ending}</span> <Tail text={shown} />
    </span>
  );
}

function RowAction({ table, row, control }: { table: RolloutTable; row: number; control: Control }) {
  const status = table.statusOf(row);
  const name = `${table.text("task", row)}#${table.number("attempt", row)}`;
  const command = status === "running" || status === "pending" ? "cancel" : "retry";
  if (status === "completed") return null;
  return (
    <button
      type="button"
      class="row-action"
      tabIndex={-1}
      disabled={control.isBusy}
      aria-label={`${command} ${name}`}
      onClick={() => control.command(command, name)}
    >
      {command}
    </button>
  );
}

function useIsWide(): boolean {
  const query = "(min-width: 1600px)";
  const [isWide, setWide] = useState(window.matchMedia?.(query).matches ?? false);
  useEffect(() => {
    const list = window.matchMedia?.(query);
    const changed = () => setWide(list.matches);
    list?.addEventListener("change", changed);
    return () => list?.removeEventListener("change", changed);
  }, []);
  return isWide;
}

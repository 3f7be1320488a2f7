/**
 * The rollouts of a run as columns, with filters and sorting over indexes.
 *
 * No object exists for a row: a selection of rows is an array of row numbers. Filtering and sorting 100,000 rows takes well
 * below 100 ms, so that they happen while a user types.
 */
import { useEffect, useReducer } from "preact/hooks";
import type { LiveRollout, RolloutRows } from "./api";
import { load, settings } from "./source";

/** The score from which a rollout counts as solved, as in pass@k. */
export const SOLVED = 1 - 1e-9;

/** What a score says about an answer, in the words of `RunRow.verdicts`; undefined without a score. */
export function verdictOf(score: number | null): string | undefined {
  if (score === null || Number.isNaN(score)) return undefined;
  if (score >= SOLVED) return "right";
  return score > 0 ? "partly right" : "wrong";
}

/** The verdict on a completed rollout with a score; otherwise its status. */
export function outcomeOf(status: string, score: number | null): string {
  return (status === "completed" && verdictOf(score)) || status;
}

export interface RolloutFilter {
  /** Words that all have to occur in the id, the question, the reference, the answer or the error. */
  words: string;
  /** Statuses or verdicts. Empty: all. */
  statuses: string[];
  /** The kind of a failure; empty: all. */
  kind: string;
  /** The message of a group of failures, with `…` for its varying parts; empty: all. */
  message: string;
  /** Solved, executed but not solved, or a score within bounds that are included. */
  score: "solved" | "unsolved" | { low: number; high: number } | null;
  /** Only rollouts whose last reply was cut. */
  cut: boolean;
  /** Rollouts that were under way at some time of this interval, in seconds since the epoch. */
  time: { from: number; to: number } | null;
}

export const EVERYTHING: RolloutFilter = {
  words: "",
  statuses: [],
  kind: "",
  message: "",
  score: null,
  cut: false,
  time: null,
};

/** Endings of rollouts whose answer may be incomplete, as `CUT_ENDINGS` in `paragent.tasks`. */
export const CUT_ENDINGS = ["answer cut", "context full"];

export interface RolloutSort {
  column: string;
  descending: boolean;
}

type NumberColumn =
  | "position"
  | "attempt"
  | "number"
  | "score"
  | "turns"
  | "tool_calls"
  | "tokens"
  | "seconds"
  | "waited"
  | "started"
  | "ended"
  | "executions";
type TextColumn = "task" | "question" | "reference" | "ending" | "error" | "answer" | "worker" | "machine";

const NUMBERS: NumberColumn[] = [
  "position",
  "attempt",
  "number",
  "score",
  "turns",
  "tool_calls",
  "tokens",
  "seconds",
  "waited",
  "started",
  "ended",
  "executions",
];
const TEXTS: TextColumn[] = ["task", "question", "reference", "ending", "error", "answer", "worker", "machine"];
/** Errors of the table are cut at about this length by the server. */
const ERROR_LENGTH = 190;

/** A column with few different words, kept as numbers. */
class WordColumn {
  readonly words: string[] = [];
  codes = new Uint16Array(0);
  private readonly known = new Map<string, number>();

  code(word: string): number {
    let code = this.known.get(word);
    if (code === undefined) {
      code = this.words.push(word) - 1;
      this.known.set(word, code);
    }
    return code;
  }
}

export class RolloutTable {
  count = 0;
  /** The number of the newest result that is included. */
  last = 0;
  private readonly numbers = Object.fromEntries(NUMBERS.map((name) => [name, new Float64Array(0)])) as Record<
    NumberColumn,
    Float64Array
  >;
  private readonly texts = Object.fromEntries(TEXTS.map((name) => [name, [] as string[]])) as Record<
    TextColumn,
    string[]
  >;
  private readonly status = new WordColumn();
  private readonly kind = new WordColumn();
  private readonly searched: string[] = [];
  private readonly rowOf = new Map<string, number>();
  private readonly rowOfNumber = new Map<number, number>();
  private running = new Map<number, LiveRollout>();
  private readonly orders = new Map<string, Uint32Array>();

  /** Add rollouts, or replace those that are known. */
  add(rows: RolloutRows): void {
    this.reserve(this.count + rows.task.length);
    for (let index = 0; index < rows.task.length; index++) {
      const key = `${rows.task[index]}#${rows.attempt[index]}`;
      let row = this.rowOf.get(key);
      if (row === undefined) {
        row = this.count++;
        this.rowOf.set(key, row);
      }
      this.write(row, rows, index);
    }
    this.last = Math.max(this.last, rows.last);
    this.orders.clear();
  }

  private write(row: number, rows: RolloutRows, index: number): void {
    for (const name of NUMBERS) this.numbers[name][row] = rows[name][index] ?? Number.NaN;
    for (const name of TEXTS) this.texts[name][row] = rows[name][index] ?? "";
    const number = rows.number[index];
    if (number !== null && number !== undefined) this.rowOfNumber.set(number, row);
    this.running.delete(row);
    this.status.codes[row] = this.status.code(rows.status[index] ?? "pending");
    this.kind.codes[row] = this.kind.code(rows.kind[index] ?? "");
    const parts = [
      rows.task[index],
      rows.question[index],
      rows.reference[index],
      rows.answer[index],
      rows.error[index],
    ];
    this.searched[row] = parts.join("\n").toLowerCase();
  }

  private reserve(count: number): void {
    if (count <= this.status.codes.length) return;
    const capacity = Math.max(1024, count, 2 * this.status.codes.length);
    for (const name of NUMBERS) {
      const larger = new Float64Array(capacity);
      larger.set(this.numbers[name]);
      this.numbers[name] = larger;
    }
    for (const column of [this.status, this.kind]) {
      const larger = new Uint16Array(capacity);
      larger.set(column.codes);
      column.codes = larger;
    }
  }

  /** Mark the rollouts that were being executed at some time, in seconds since the epoch. */
  setRunning(rollouts: LiveRollout[], at: number): void {
    this.running = new Map();
    for (const rollout of rollouts) {
      const row = this.rowOf.get(`${rollout.task}#${rollout.attempt}`);
      // A result that is newer than what the rollout was doing is the result of this execution.
      if (row !== undefined && !(this.number("ended", row) > at - rollout.since)) this.running.set(row, rollout);
    }
    for (const column of ["status", "-status"]) this.orders.delete(column);
  }

  /** A number of a row; NaN if it is unknown. */
  number(column: NumberColumn, row: number): number {
    return this.numbers[column][row] ?? Number.NaN;
  }

  text(column: TextColumn, row: number): string {
    return this.texts[column][row] ?? "";
  }

  /** The status of the result, `running` while the rollout is executed, or `pending`. */
  statusOf(row: number): string {
    return this.running.has(row) ? "running" : (this.status.words[this.status.codes[row] ?? 0] ?? "pending");
  }

  /** The verdict on a completed rollout with a score; the status of all others. */
  outcomeOf(row: number): string {
    return outcomeOf(this.statusOf(row), this.number("score", row));
  }

  /** Whether the rollout is completed and its score is not a full one. */
  isWrong(row: number): boolean {
    return this.statusOf(row) === "completed" && this.number("score", row) < SOLVED;
  }

  /** Whether a task has a reference. */
  hasReferences(): boolean {
    return this.texts.reference.some(Boolean);
  }

  /** Whether the limit of tokens or of the context was reached. */
  isCut(row: number): boolean {
    return CUT_ENDINGS.includes(this.text("ending", row));
  }

  kindOf(row: number): string {
    return this.kind.words[this.kind.codes[row] ?? 0] ?? "";
  }

  /** What a worker reports about a rollout that is being executed. */
  activityOf(row: number): LiveRollout | undefined {
    return this.running.get(row);
  }

  /** How many rollouts have which outcome. */
  outcomeCounts(): Map<string, number> {
    const counts = new Map<string, number>();
    for (let row = 0; row < this.count; row++) {
      const outcome = this.outcomeOf(row);
      counts.set(outcome, (counts.get(outcome) ?? 0) + 1);
    }
    return counts;
  }

  /** The numbers of a column in some rows. */
  values(column: NumberColumn, rows: Uint32Array): Float64Array {
    const all = this.numbers[column];
    const values = new Float64Array(rows.length);
    for (let index = 0; index < rows.length; index++) values[index] = all[rows[index] as number] as number;
    return values;
  }

  /** All kinds of failures, sorted. */
  kinds(): string[] {
    return this.kind.words.filter(Boolean).sort();
  }

  /** The row of a rollout. */
  find(task: string, attempt: number): number | undefined {
    return this.rowOf.get(`${task}#${attempt}`);
  }

  /** The row whose result has this number. */
  rowOfExecution(number: number): number | undefined {
    return this.rowOfNumber.get(number);
  }

  /** The rows that match a filter, in an order; without one, in the order of the tasks. */
  select(filter: RolloutFilter, sort: RolloutSort | null = null): Uint32Array {
    const matches = this.matcher(filter);
    const found = new Uint32Array(this.count);
    let length = 0;
    for (let row = 0; row < this.count; row++) if (matches(row)) found[length++] = row;
    return this.sort(found.subarray(0, length), sort);
  }

  /** Selected rows in an order; without one, as they are. */
  sort(rows: Uint32Array, sort: RolloutSort | null): Uint32Array {
    if (!sort) return rows;
    const order = this.order(sort);
    if (rows.length === this.count) return order;
    const isSelected = new Uint8Array(this.count);
    for (const row of rows) isSelected[row] = 1;
    return order.filter((row) => isSelected[row] === 1);
  }

  private matcher(filter: RolloutFilter): (row: number) => boolean {
    const tests: ((row: number) => boolean)[] = [];
    if (filter.statuses.length > 0) {
      const wanted = new Set(filter.statuses);
      tests.push((row) => wanted.has(this.outcomeOf(row)) || wanted.has(this.statusOf(row)));
    }
    if (filter.kind) {
      const code = this.kind.words.indexOf(filter.kind);
      tests.push((row) => this.kind.codes[row] === code);
    }
    if (filter.score) {
      const { score, number } = this.numbers;
      const { low, high } = typeof filter.score === "object" ? filter.score : { low: SOLVED, high: Number.MAX_VALUE };
      const isWithin = (row: number) => (score[row] as number) >= low && (score[row] as number) <= high;
      tests.push(filter.score === "unsolved" ? (row) => !Number.isNaN(number[row]) && !isWithin(row) : isWithin);
    }
    if (filter.cut) tests.push((row) => this.isCut(row));
    if (filter.time) {
      const { from, to } = filter.time;
      const { started, ended } = this.numbers;
      tests.push((row) => {
        const end = ended[row] as number;
        return end > 0 && end >= from && ((started[row] as number) || end) <= to;
      });
    }
    if (filter.message) {
      const known = new Map<string, boolean>();
      tests.push((row) => {
        const error = this.texts.error[row] as string;
        let matches = known.get(error);
        if (matches === undefined) {
          matches = error !== "" && matchesMessage(error, filter.message);
          known.set(error, matches);
        }
        return matches;
      });
    }
    for (const word of filter.words.toLowerCase().split(/\s+/).filter(Boolean)) {
      tests.push((row) => (this.searched[row] as string).includes(word));
    }
    const [first, ...others] = tests;
    if (!first) return () => true;
    return others.length === 0 ? first : (row) => first(row) && others.every((test) => test(row));
  }

  /** All rows in an order; unknown values are last in both directions, equal ones keep the order of the tasks. */
  private order({ column, descending }: RolloutSort): Uint32Array {
    const name = `${descending ? "-" : ""}${column}`;
    let order = this.orders.get(name);
    if (!order) {
      order = this.sorted(this.sortKeys(column), descending);
      this.orders.set(name, order);
    }
    return order;
  }

  private sorted(keys: Float64Array, descending: boolean): Uint32Array {
    const known = new Uint32Array(this.count);
    const order = new Uint32Array(this.count);
    let length = 0;
    let end = this.count;
    for (let row = this.count - 1; row >= 0; row--) if (Number.isNaN(keys[row])) order[--end] = row;
    for (let row = 0; row < this.count; row++) if (!Number.isNaN(keys[row])) known[length++] = row;
    const sign = descending ? -1 : 1;
    const part = known.subarray(0, length);
    part.sort((a, b) => sign * ((keys[a] as number) - (keys[b] as number)) || a - b);
    order.set(part);
    return order;
  }

  /** Numbers that sort as the column does. */
  private sortKeys(column: string): Float64Array {
    const keys = new Float64Array(this.count);
    if (column in this.numbers) {
      const values = this.numbers[column as NumberColumn];
      const zeroIsUnknown = column === "started" || column === "ended";
      for (let row = 0; row < this.count; row++) {
        const value = values[row] as number;
        keys[row] = zeroIsUnknown && value === 0 ? Number.NaN : value;
      }
      return keys;
    }
    const texts = this.textsOf(column);
    const ranks = new Map(
      [...new Set(texts)].sort((a, b) => (a < b ? -1 : Number(a > b))).map((text, rank) => [text, rank]),
    );
    for (let row = 0; row < this.count; row++) {
      const text = texts[row] as string;
      keys[row] = text === "" ? Number.NaN : (ranks.get(text) as number);
    }
    return keys;
  }

  private textsOf(column: string): string[] {
    if (column in this.texts) return this.texts[column as TextColumn];
    const rows = Array.from({ length: this.count }, (_, row) => row);
    if (column === "status") return rows.map((row) => this.outcomeOf(row));
    if (column === "kind") return rows.map((row) => this.kindOf(row));
    return rows.map(() => "");
  }
}

/** Whether an error, which may be cut, has a message in which `…` stands for any text. */
export function matchesMessage(error: string, message: string): boolean {
  const [first = "", ...others] = message.split("…");
  const isCut = error.length >= ERROR_LENGTH;
  if (!error.startsWith(first)) return isCut && first.startsWith(error);
  let end = first.length;
  for (const part of others) {
    const found = error.indexOf(part, end);
    if (found < 0) return isCut;
    end = found + part.length;
  }
  return true;
}

const FIRST_CHUNK = 1_000;
const CHUNK = 20_000;

export interface Rollouts {
  table: RolloutTable;
  /** Changes with the content of the table. */
  version: number;
  /** Whether all rollouts have been loaded. */
  complete: boolean;
  error: string;
  /** Load the results that are newer than those in the table. */
  update: () => void;
  setRunning: (rollouts: LiveRollout[], at: number) => void;
}

/** Loads the rollouts of one run: a small part first, so that the page shows something, then large ones. */
class RolloutLoader {
  table = new RolloutTable();
  isComplete = false;
  error = "";
  readonly listeners = new Set<() => void>();
  private isBusy = false;
  private readonly stopped = new AbortController();

  constructor(readonly run: string) {}

  /** Load everything, or, if that was done, what is new. */
  refresh(): void {
    this.work(async () => {
      if (!this.isComplete || (await this.isReplaced())) await this.loadAll();
      else await this.loadNew();
    });
  }

  /** Load what is new. */
  update(): void {
    if (this.isComplete) this.work(() => this.loadNew());
    else this.refresh();
  }

  stop(): void {
    this.stopped.abort();
  }

  changed(): void {
    for (const listener of this.listeners) listener();
  }

  private async work(task: () => Promise<void>): Promise<void> {
    if (this.isBusy) return;
    this.isBusy = true;
    try {
      await task();
      this.error = "";
    } catch (failure) {
      if (this.stopped.signal.aborted) return;
      this.error = (failure as Error).message;
    } finally {
      this.isBusy = false;
    }
    this.changed();
  }

  private request(params: Record<string, number>): Promise<RolloutRows> {
    return load(["runs", this.run, "rollouts"], params, this.stopped.signal);
  }

  private async loadAll(): Promise<void> {
    this.table = new RolloutTable();
    this.isComplete = false;
    for (let after: number | null = 0, limit = FIRST_CHUNK; after !== null; limit = CHUNK) {
      const rows: RolloutRows = await this.request({ after, limit });
      const last = this.table.last;
      this.table.add(rows);
      // A result that was written between two chunks may belong to an earlier one: updates start from the first.
      if (after !== 0) this.table.last = last;
      after = rows.next;
      this.changed();
    }
    this.isComplete = true;
  }

  /** Whether another run has its name now. */
  private async isReplaced(): Promise<boolean> {
    return !settings.static && (await this.request({ after: 0, limit: 1 })).last < this.table.last;
  }

  private async loadNew(): Promise<void> {
    for (let before = -1; before < this.table.last && !settings.static; ) {
      before = this.table.last;
      this.table.add(await this.request({ since: before }));
    }
  }
}

/** The rollouts of the run that was shown last: the pages of its rollouts and the way back need not load them again. */
let newest: RolloutLoader | null = null;

function loaderOf(run: string): RolloutLoader {
  if (newest?.run !== run) {
    newest?.stop();
    newest = new RolloutLoader(run);
  }
  return newest;
}

/** All rollouts of a run. */
export function useRollouts(run: string): Rollouts {
  const loader = loaderOf(run);
  const [version, changed] = useReducer((before: number) => before + 1, 0);
  useEffect(() => {
    const listener = () => changed(undefined);
    loader.listeners.add(listener);
    loader.table.setRunning([], 0);
    loader.refresh();
    return () => {
      loader.listeners.delete(listener);
    };
  }, [loader]);
  return {
    table: loader.table,
    version,
    complete: loader.isComplete,
    error: loader.error,
    update: () => loader.update(),
    setRunning: (rollouts, at) => {
      loader.table.setRunning(rollouts, at);
      loader.changed();
    },
  };
}

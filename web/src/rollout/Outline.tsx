import { memo } from "preact/compat";
import { useEffect, useRef } from "preact/hooks";
import type { StepNote, TranscriptStep } from "../api";
import { formatDuration } from "../format";
import { oneLine } from "../text";
import { describePointer } from "./pointers";
import { StepIcon } from "./StepIcon";
import { summaryOf } from "./ToolCallView";
import { hasError, type Turn, turnSeconds } from "./turns";

interface OutlineProps {
  turns: Turn[];
  /** The first step of the selected turn. */
  selected: number | null;
  notes: StepNote[];
  onSelect: (step: number) => void;
}

/** The list of turns, with what each did and how long it took. */
export function Outline({ turns, selected, notes, onSelect }: OutlineProps) {
  const list = useRef<HTMLOListElement>(null);
  const longest = turns.reduce((most, turn) => Math.max(most, turnSeconds(turn) ?? 0), 0);
  const noted = new Set(notes.map((note) => note.step));
  useEffect(() => {
    list.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }, [selected]);
  return (
    <nav class="outline" aria-label="Turns">
      <ol ref={list}>
        {turns.map((turn) => (
          <OutlineRow
            key={turn.first}
            turn={turn}
            current={turn.first === selected}
            share={longest > 0 ? (turnSeconds(turn) ?? 0) / longest : 0}
            noted={turn.steps.some((step) => noted.has(step.index))}
            onSelect={onSelect}
          />
        ))}
      </ol>
    </nav>
  );
}

interface OutlineRowProps {
  turn: Turn;
  current: boolean;
  share: number;
  noted: boolean;
  onSelect: (step: number) => void;
}

const OutlineRow = memo(function OutlineRow({ turn, current, share, noted, onSelect }: OutlineRowProps) {
  const seconds = turnSeconds(turn);
  return (
    <li>
      <button
        type="button"
        class={`outline-row${hasError(turn) ? " failed" : ""}`}
        aria-current={current ? "step" : undefined}
        onClick={() => onSelect(turn.first)}
      >
        <span class="outline-number">{turn.turn === 0 || turn.branch ? "" : turn.turn}</span>
        <span class="outline-text clipped">{titleOf(turn)}</span>
        <span class="outline-icons">
          {turn.steps.some((step) => step.reasoning !== "") && <StepIcon kind="reasoning" label="has reasoning" />}
          {hasError(turn) && <StepIcon kind="error" label="has an error" />}
          {noted && <StepIcon kind="note" label="has a note" />}
        </span>
        <span class="outline-time">{seconds === null ? "" : formatDuration(seconds)}</span>
        {share > 0 && <span class="outline-bar" style={{ width: `${Math.round(share * 100)}%` }} />}
      </button>
    </li>
  );
});

/** What happened in a turn, on one line. */
export function titleOf(turn: Turn): string {
  if (turn.branch) return turn.branch;
  if (turn.turn === 0) return turn.steps.map((step) => step.kind).join(", ");
  const [first] = turn.steps;
  if (first === undefined) return "";
  return [actionOf(first), ...turn.steps.slice(1).filter(isOwn).map(actionOf)].filter(Boolean).join(", ");
}

function isOwn(step: TranscriptStep): boolean {
  return step.kind !== "tool";
}

function actionOf(step: TranscriptStep): string {
  if (step.pointers.length > 0) return oneLine(step.pointers.map(describePointer).join(", "), 60);
  const [call] = step.calls;
  if (call) {
    const others = step.calls.length > 1 ? ` and ${step.calls.length - 1} more` : "";
    return `${oneLine(call.name, 30)}${others} ${oneLine(summaryOf(call), 50)}`;
  }
  if (["score", "judge", "program", "error"].includes(step.kind)) return step.kind;
  return oneLine(step.text, 60) || oneLine(step.reasoning, 60) || step.kind;
}

import { memo } from "preact/compat";
import type { TranscriptStep } from "../api";
import { TextView } from "../components/TextView";
import { formatDuration } from "../format";
import { cleanText, isBareCode, oneLine } from "../text";
import { useRollout } from "./context";
import { describePointer } from "./pointers";
import { StepIcon } from "./StepIcon";
import { StepTools, Thumbnails } from "./StepParts";
import { ToolCallView } from "./ToolCallView";
import { type Turn, type TurnItem, turnSeconds } from "./turns";

interface TurnViewProps {
  turn: Turn;
  /** The selected step, if it belongs to this turn. */
  selected: number | null;
  /** Whether reasoning is unfolded. */
  reasoning: boolean;
}

/** One turn. It is drawn again only if something of it changes: selecting a step changes two turns of hundreds. */
export const TurnView = memo(function TurnView({ turn, selected, reasoning }: TurnViewProps) {
  const seconds = turnSeconds(turn);
  const title = `turn-${turn.first}`;
  return (
    <section class={`turn${turn.branch ? " begins-branch" : ""}`} aria-labelledby={title}>
      <h3 id={title} class="turn-title">
        {turn.branch || (turn.turn === 0 ? "Start" : `Turn ${turn.turn}`)}
        {seconds !== null && <span class="soft"> · {formatDuration(seconds)}</span>}
      </h3>
      {turn.items.map((item) => (
        <StepView key={item.step.index} item={item} selected={selected} reasoning={reasoning} />
      ))}
    </section>
  );
});

const TITLES: Record<string, string> = {
  system: "System",
  user: "User",
  model: "Model",
  agent: "Agent",
  program: "Program",
  tool: "Tool result",
  judge: "Judge",
  score: "Score",
  machine: "Machine",
  error: "Error",
};

interface StepViewProps {
  item: TurnItem;
  selected: number | null;
  reasoning: boolean;
}

function StepView({ item, selected, reasoning }: StepViewProps) {
  const { run, execution, select } = useRollout();
  const { step, calls } = item;
  const failed = step.error || step.kind === "error";
  const isSelected = selected === step.index;
  return (
    <article
      class={`step kind-${step.kind}${isSelected ? " selected" : ""}${failed ? " failed" : ""}`}
      id={`step-${step.index}`}
      aria-current={isSelected ? "step" : undefined}
    >
      <header class="message-head">
        <button type="button" class="step-select" onClick={() => select(step.index)} title="Select this step">
          <StepIcon kind={step.kind} />
          <span class="step-kind">{TITLES[step.kind] ?? step.kind}</span>
          {step.name && <span class="step-name clipped">{oneLine(step.name, 80)}</span>}
        </button>
        <StepTools step={step} />
      </header>
      {step.reasoning !== "" && <Reasoning step={step} open={reasoning} />}
      {step.text !== "" && (
        <div class="message-text">
          <TextView
            text={step.text}
            length={step.length}
            whole={{ run, execution, step: step.index }}
            {...textOptions(step)}
          />
        </div>
      )}
      {step.pointers.length > 0 && (
        <ul class="actions" aria-label="Actions">
          {step.pointers.map((pointer, index) => (
            <li key={index}>{describePointer(pointer)}</li>
          ))}
        </ul>
      )}
      {calls.map(({ call, result }, index) => (
        <ToolCallView
          key={index}
          call={call}
          result={result}
          selected={result !== undefined && selected === result.index}
        />
      ))}
      <Thumbnails step={step} />
    </article>
  );
}

function textOptions(step: TranscriptStep) {
  switch (step.kind) {
    case "system":
      return { format: "markdown" as const, limit: 600, lines: 6 };
    case "user":
    case "model":
      if (step.error) return { lines: 12 };
      return { format: isBareCode(step.text) ? ("plain" as const) : ("markdown" as const) };
    case "error":
      return { lines: 12 };
    default:
      return {};
  }
}

function Reasoning({ step, open }: { step: TranscriptStep; open: boolean }) {
  return (
    <details class="reasoning" open={open}>
      <summary>
        <StepIcon kind="reasoning" />
        Reasoning
        <span class="soft clipped reasoning-start">{oneLine(cleanText(step.reasoning), 140)}</span>
      </summary>
      <TextView text={step.reasoning} format="markdown" />
    </details>
  );
}

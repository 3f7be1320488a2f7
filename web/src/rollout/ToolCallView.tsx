import { useEffect, useState } from "preact/hooks";
import type { ToolCall, TranscriptStep } from "../api";
import { CodeView } from "../components/CodeView";
import { JsonView } from "../components/JsonView";
import { TextView } from "../components/TextView";
import { oneLine, parseJson } from "../text";
import { useRollout } from "./context";
import { StepIcon } from "./StepIcon";
import { StepTools, Thumbnails } from "./StepParts";

/** Calls with more characters than this, arguments and result together, are folded at first. */
const FOLDED = 6_000;

interface ToolCallViewProps {
  call: ToolCall;
  result: TranscriptStep | undefined;
  selected: boolean;
}

/** A tool call with its result. */
export function ToolCallView({ call, result, selected }: ToolCallViewProps) {
  const long = call.arguments.length + (result?.length ?? 0) > FOLDED;
  const [open, setOpen] = useState(!long || result?.error === true);
  const failed = result?.error === true;
  useEffect(() => {
    if (selected) setOpen(true);
  }, [selected]);
  return (
    <div
      class={`call${failed ? " failed" : ""}${selected ? " selected" : ""}`}
      id={result ? `step-${result.index}` : undefined}
    >
      <div class="call-head">
        <button type="button" class="call-fold" aria-expanded={open} onClick={() => setOpen(!open)}>
          <span class="fold-mark" aria-hidden="true">
            {open ? "▾" : "▸"}
          </span>
          <StepIcon kind="tool" />
          <span class="call-name">{oneLine(call.name, 80) || "(no name)"}</span>
          <span class="call-summary clipped">{summaryOf(call)}</span>
        </button>
        {failed && <span class="mark-error">error</span>}
        {result ? <StepTools step={result} /> : <span class="mark-missing">no result</span>}
      </div>
      {open && (
        <div class="call-body">
          <CallArguments call={call} />
          {result && <CallResult result={result} />}
        </div>
      )}
    </div>
  );
}

function CallResult({ result }: { result: TranscriptStep }) {
  const { run, execution, select } = useRollout();
  return (
    <div class="call-result">
      <button type="button" class="part-label" onClick={() => select(result.index)} title="Select this step">
        Result
      </button>
      {result.text === "" && result.images.length === 0 && <span class="soft">(empty)</span>}
      {result.text !== "" && (
        <TextView
          text={result.text}
          length={result.length}
          whole={{ run, execution, step: result.index }}
          limit={2500}
          lines={24}
        />
      )}
      <Thumbnails step={result} />
    </div>
  );
}

/** The arguments on one line: `CLICK x=472 y=792`. */
export function summaryOf(call: ToolCall): string {
  const value = parseJson(call.arguments.slice(0, 20_000));
  if (value === undefined || Array.isArray(value)) return oneLine(call.arguments, 160);
  const entries = Object.entries(value as Record<string, unknown>).flatMap(([name, given]) =>
    name === "parameters" && given !== null && typeof given === "object" ? Object.entries(given) : [[name, given]],
  ) as [string, unknown][];
  if (entries.length === 1 && typeof entries[0]?.[1] === "string") return oneLine(entries[0][1], 160);
  const words = entries.map(([name, given]) => {
    const text = typeof given === "string" ? given : (JSON.stringify(given) ?? "");
    return name === "action_type" || name === "action" ? text : `${name}=${text.slice(0, 100)}`;
  });
  return oneLine(words.join(" "), 160);
}

const CODE_NAMES: Record<string, string> = {
  code: "python",
  python: "python",
  command: "bash",
  cmd: "bash",
  script: "bash",
  sql: "sql",
  query: "",
};

/** Arguments that the summary shows completely are not shown again. */
const SHORT = 110;

function CallArguments({ call }: { call: ToolCall }) {
  const value = parseJson(call.arguments);
  if (value === undefined) {
    return call.arguments.trim() === "" ? null : <TextView text={call.arguments} format="plain" />;
  }
  if (Array.isArray(value)) return <JsonView value={value} />;
  const entries = Object.entries(value as Record<string, unknown>);
  const codes = entries.filter(isCode) as [string, string][];
  const others = entries.filter((entry) => !isCode(entry));
  return (
    <>
      {others.length > 0 && (codes.length > 0 || call.arguments.length > SHORT) && (
        <JsonView value={Object.fromEntries(others)} open={3} />
      )}
      {codes.map(([name, code]) => (
        <div key={name}>
          {entries.length > 1 && <div class="part-label">{oneLine(name, 60)}</div>}
          <CodeView code={code} language={languageOf(name, code)} />
        </div>
      ))}
    </>
  );
}

function isCode([name, given]: [string, unknown]): boolean {
  return typeof given === "string" && (given.includes("\n") || (CODE_NAMES[name] ?? "") !== "");
}

function languageOf(name: string, code: string): string {
  if (name === "command" && code.includes("pyautogui")) return "python";
  return CODE_NAMES[name] ?? "";
}

import { useEffect, useMemo, useState } from "preact/hooks";
import { formatBytes, formatNumber } from "../format";
import { address, RequestFailed } from "../source";
import { beginning, cleanText, ending, formatOf, parseJson, rowsOf, splitText, type TextFormat } from "../text";
import { CodeView } from "./CodeView";
import { CopyButton } from "./CopyButton";
import { JsonView } from "./JsonView";
import { Markdown } from "./Markdown";
import "./TextView.css";

/** Where the whole text of a step can be loaded. */
export interface WholeText {
  run: string;
  execution: number;
  step: number;
}

interface TextViewProps {
  text: string;
  /** The length of the whole text, if `text` is its beginning. */
  length?: number;
  whole?: WholeText;
  /** How to show it; found out from the text by default. */
  format?: TextFormat;
  /** Characters and lines shown at first. */
  limit?: number;
  lines?: number;
  /** Which part of a long text is shown at first; the end needs the whole text. */
  part?: "beginning" | "end";
}

const LIMIT = 4000;
const LINES = 40;

/** A text of any length: its beginning or its end, formatted; the rest when the reader asks for it. */
export function TextView(props: TextViewProps) {
  const { text, length = text.length, whole, format, limit = LIMIT, lines = LINES, part = "beginning" } = props;
  const [open, setOpen] = useState(false);
  const kind = useMemo(() => format ?? formatOf(text), [text, format]);
  const start = useMemo(() => beginning(text, limit, lines), [text, limit, lines]);
  const cut = start.length < text.length || length > text.length;
  const end = useMemo(() => (cut && part === "end" ? ending(text, limit, lines) : ""), [text, cut, part, limit, lines]);
  if (open)
    return <WholeTextView text={text} length={length} whole={whole} kind={kind} onClose={() => setOpen(false)} />;
  const folded = kind === "json" || kind === "table"; // they cannot be cut, and fold or scroll by themselves
  const shown = length > text.length || !folded ? end || start : text;
  const more = cut && !(folded && length <= text.length) && (
    <button type="button" class="more-button" onClick={() => setOpen(true)}>
      Show all {formatNumber(length)} characters
    </button>
  );
  return (
    <div class="text-view">
      {part === "end" && more}
      <Formatted text={shown} kind={length > text.length && folded ? "plain" : kind} />
      {part === "beginning" && more}
    </div>
  );
}

function Formatted({ text, kind }: { text: string; kind: TextFormat }) {
  if (kind === "markdown") return <Markdown text={text} />;
  if (kind === "traceback") return <CodeView code={text} language="python" />;
  if (kind === "diff") return <CodeView code={text} language="diff" />;
  if (kind === "json") return <JsonView value={parseJson(text)} open={3} />;
  const rows = kind === "table" ? rowsOf(text) : null;
  return rows ? <RowsTable rows={rows} /> : <pre class="text">{cleanText(text)}</pre>;
}

function RowsTable({ rows }: { rows: string[][] }) {
  const [limit, setLimit] = useState(50);
  return (
    <div class="table-scroll">
      <table class="plain-table">
        <thead>
          <tr>
            {rows[0]?.map((cell, index) => (
              <th key={index}>{cleanText(cell)}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.slice(1, limit).map((row, number) => (
            <tr key={number}>
              {row.map((cell, index) => (
                <td key={index}>{cleanText(cell)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > limit && (
        <button type="button" class="more-button" onClick={() => setLimit(limit + 500)}>
          Show more of {formatNumber(rows.length - 1)} rows
        </button>
      )}
    </div>
  );
}

/** Texts up to this length are formatted when they are shown as a whole. */
const LONGEST_FORMATTED = 60_000;

function WholeTextView(props: {
  text: string;
  length: number;
  whole: WholeText | undefined;
  kind: TextFormat;
  onClose: () => void;
}) {
  const { text, length, whole, kind, onClose } = props;
  const partial = length > text.length;
  const { loaded, error } = useWholeText(partial ? whole : undefined);
  const shown = partial ? loaded : text;
  return (
    <div class="text-view">
      {shown === undefined && !error && <p class="soft">Loading {formatBytes(length)}…</p>}
      {error && (
        <p role="alert" class="load-problem">
          The whole text cannot be loaded: {error}
        </p>
      )}
      {shown !== undefined &&
        (shown.length <= LONGEST_FORMATTED ? <Formatted text={shown} kind={kind} /> : <LongText text={shown} />)}
      <div class="text-actions">
        <button type="button" class="more-button" onClick={onClose}>
          Show less
        </button>
        {shown !== undefined && <CopyButton text={shown} />}
      </div>
    </div>
  );
}

const PART = 20_000;

/** A text of many megabytes: the browser lays out only the parts that are visible. */
export function LongText({ text }: { text: string }) {
  const parts = useMemo(() => splitText(cleanText(text), PART), [text]);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, also with the keyboard
    <section class="long-text" tabIndex={0} aria-label={`Text of ${formatNumber(text.length)} characters`}>
      {parts.map((part, index) => (
        <pre key={index} class="text part" style={{ containIntrinsicHeight: `auto ${estimatedHeight(part)}px` }}>
          {part}
        </pre>
      ))}
    </section>
  );
}

function estimatedHeight(part: string): number {
  let lines = 0;
  for (const line of part.split("\n")) lines += Math.max(1, Math.ceil(line.length / 100));
  return lines * 19;
}

function useWholeText(whole: WholeText | undefined): { loaded: string | undefined; error: string } {
  const [state, setState] = useState<{ loaded?: string; error: string }>({ error: "" });
  const { run, execution, step } = whole ?? {};
  useEffect(() => {
    if (run === undefined || execution === undefined || step === undefined) return;
    const controller = new AbortController();
    loadText(run, execution, step, controller.signal).then(
      (loaded) => setState({ loaded, error: "" }),
      (error: Error) => !controller.signal.aborted && setState({ error: error.message }),
    );
    return () => controller.abort();
  }, [run, execution, step]);
  return { loaded: state.loaded, error: state.error };
}

async function loadText(run: string, execution: number, step: number, signal: AbortSignal): Promise<string> {
  const response = await fetch(address(["runs", run, "executions", execution, "text", step]), { signal });
  if (!response.ok) throw new RequestFailed(response.status, `${response.status} ${response.statusText}`);
  return response.text();
}

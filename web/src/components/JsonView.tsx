import { useState } from "preact/hooks";
import { cleanText } from "../text";
import "./JsonView.css";

/** Children shown at first; a button shows more. */
const CHUNK = 100;
const LONGEST_STRING = 2000;

interface JsonViewProps {
  value: unknown;
  /** Levels that are open at first. */
  open?: number;
}

/** A JSON value as a tree that can be folded. Children are made when they are shown, so the depth does not matter. */
export function JsonView({ value, open = 2 }: JsonViewProps) {
  return (
    <div class="json-view">
      <JsonNode value={value} open={open} />
    </div>
  );
}

function JsonNode({ value, open, name, last = true }: JsonViewProps & { name?: string | undefined; last?: boolean }) {
  const label = name === undefined ? null : <span class="json-key">{cleanText(name)}: </span>;
  if (value === null || typeof value !== "object") {
    return (
      <div class="json-line">
        {label}
        <JsonLeaf value={value} />
        {last ? "" : ","}
      </div>
    );
  }
  return <JsonBranch value={value} label={label} open={open ?? 0} last={last} />;
}

function JsonBranch({ value, label, open, last }: { value: object; label: unknown; open: number; last: boolean }) {
  const list = Array.isArray(value);
  const keys = list ? null : Object.keys(value);
  const count = keys === null ? (value as unknown[]).length : keys.length;
  const [shown, setShown] = useState(open > 0 && count <= CHUNK * 10);
  const [limit, setLimit] = useState(CHUNK);
  const [before, after] = list ? ["[", "]"] : ["{", "}"];
  if (count === 0) {
    return (
      <div class="json-line">
        {label}
        {before + after}
        {last ? "" : ","}
      </div>
    );
  }
  const head = (
    <button type="button" class="json-fold" aria-expanded={shown} onClick={() => setShown(!shown)}>
      <span class="json-mark" aria-hidden="true">
        {shown ? "▾" : "▸"}
      </span>
      {label}
      {before}
      {shown ? "" : <span class="json-count">{` ${summary(value, count)} ${after}`}</span>}
    </button>
  );
  if (!shown) return <div class="json-line">{head}</div>;
  const indexes = Array.from({ length: Math.min(count, limit) }, (_, index) => index);
  return (
    <div>
      <div class="json-line">{head}</div>
      <div class="json-children">
        {indexes.map((index) => {
          const key = keys?.[index];
          const child = key === undefined ? (value as unknown[])[index] : (value as Record<string, unknown>)[key];
          return <JsonNode key={index} value={child} name={key} open={open - 1} last={index === count - 1} />;
        })}
        {count > limit && (
          <button type="button" class="more-button" onClick={() => setLimit(limit + CHUNK * 5)}>
            Show {Math.min(CHUNK * 5, count - limit)} more of {count}
          </button>
        )}
      </div>
      <div class="json-line">
        {after}
        {last ? "" : ","}
      </div>
    </div>
  );
}

function summary(value: object, count: number): string {
  if (Array.isArray(value)) return `${count} ${count === 1 ? "item" : "items"}`;
  const keys = Object.keys(value).slice(0, 3).map(cleanText).join(", ");
  return count > 3 ? `${keys}, …` : keys;
}

function JsonLeaf({ value }: { value: unknown }) {
  const [whole, setWhole] = useState(false);
  if (typeof value !== "string") return <span class={`json-${typeof value}`}>{String(value)}</span>;
  const cut = !whole && value.length > LONGEST_STRING;
  const text = cleanText(cut ? value.slice(0, LONGEST_STRING) : value);
  return (
    <>
      <span class="json-string">{`"${text}${cut ? "…" : '"'}`}</span>
      {cut && (
        <button type="button" class="more-button" onClick={() => setWhole(true)}>
          Show all {value.length.toLocaleString("en-GB")} characters
        </button>
      )}
    </>
  );
}

/** A value as JSON text; values that are nested too deeply for it have a note instead. */
export function jsonText(value: unknown): string {
  try {
    return JSON.stringify(value, null, 2) ?? "";
  } catch {
    return "(nested too deeply)";
  }
}

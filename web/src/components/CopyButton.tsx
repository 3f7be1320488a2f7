import { useState } from "preact/hooks";
import "./CopyButton.css";

/** Copies a text; `text` may be made when it is needed. */
export function CopyButton({ text, label = "Copy" }: { text: string | (() => string); label?: string }) {
  const [outcome, setOutcome] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "string" ? text : text());
      setOutcome("Copied");
    } catch {
      setOutcome("Not allowed"); // no clipboard, for example without HTTPS on another host
    }
    setTimeout(() => setOutcome(""), 1500);
  };
  return (
    <button type="button" class="copy-button" onClick={copy} aria-live="polite">
      {outcome || label}
    </button>
  );
}

import { useEffect, useRef, useState } from "preact/hooks";
import type { RawCall } from "../api";
import { CopyButton } from "../components/CopyButton";
import { JsonView, jsonText } from "../components/JsonView";
import { Message } from "../components/Message";
import { useData } from "../source";
import { TokenStrip } from "./TokenStrip";

type Part = "request" | "response" | "tokens";
const TITLES: Record<Part, string> = { request: "Request", response: "Response", tokens: "Sampled tokens" };

interface RawDialogProps {
  run: string;
  execution: number;
  step: number;
  onClose: () => void;
}

/** The request and the response of a model call. */
export function RawDialog({ run, execution, step, onClose }: RawDialogProps) {
  const { data, error } = useData<RawCall>(["runs", run, "executions", execution, "raw", step]);
  const [part, setPart] = useState<Part>("response");
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  const value = data?.[part];
  const parts = (["response", "request", "tokens"] as const).filter((one) => one !== "tokens" || data?.tokens);
  return (
    <dialog
      ref={dialog}
      class="raw-dialog"
      aria-label={`Raw request and response of step ${step}`}
      onClose={onClose}
      onKeyDown={(event) => event.stopPropagation()}
    >
      <header>
        <h2>Step {step}</h2>
        <fieldset class="segments">
          <legend class="visually-hidden">Part</legend>
          {parts.map((one) => (
            <button type="button" key={one} aria-pressed={part === one} onClick={() => setPart(one)}>
              {TITLES[one]}
            </button>
          ))}
        </fieldset>
        <span class="spring" />
        {value !== undefined && value !== null && <CopyButton text={() => jsonText(value)} label="Copy as JSON" />}
        <button type="button" class="button" onClick={() => dialog.current?.close()}>
          Close
        </button>
      </header>
      <div class="raw-body">
        {error && <Message kind="error">{error}</Message>}
        {!data && !error && <Message kind="loading">Loading…</Message>}
        {data && value === null && <Message>The response was not recorded.</Message>}
        {part === "tokens" && data?.tokens && <TokenStrip tokens={data.tokens} />}
        {part !== "tokens" && value !== undefined && value !== null && (
          <JsonView key={part} value={value} open={part === "request" ? 2 : 8} />
        )}
      </div>
      {part === "request" && <p class="raw-note soft">Rebuilt from the recorded messages; images by their names.</p>}
    </dialog>
  );
}

import type { ExecutionDetail } from "../api";
import { CodeView } from "../components/CodeView";
import { TextView } from "../components/TextView";
import { stateColour } from "../states";
import { cleanText, isBareCode } from "../text";

/** The error of the rollout, and its answer beside the reference. */
export function ResultPanel({ detail }: { detail: ExecutionDetail }) {
  const isAsked = detail.steps.some((step) => step.kind === "user");
  const answered = detail.answer !== null && detail.answer !== "";
  return (
    <>
      {detail.error && <ErrorPanel detail={detail} />}
      {!isAsked && detail.question && (
        <section class="answers" aria-label="Question">
          <div class="answer">
            <h2>Question</h2>
            <TextView text={detail.question} format={isBareCode(detail.question) ? "plain" : "markdown"} lines={12} />
          </div>
        </section>
      )}
      {(answered || detail.reference) && (
        <section class={`answers${detail.reference ? " both" : ""}`} aria-label="Answer">
          {detail.reference && (
            <div class="answer">
              <h2>Reference</h2>
              <TextView text={detail.reference} format="plain" limit={1500} lines={16} />
            </div>
          )}
          <div class="answer">
            <h2>Answer</h2>
            {answered ? (
              <TextView text={detail.answer ?? ""} format="markdown" limit={1500} lines={16} />
            ) : (
              <span class="soft">none</span>
            )}
          </div>
        </section>
      )}
    </>
  );
}

function ErrorPanel({ detail }: { detail: ExecutionDetail }) {
  const { message, traceback } = splitError(detail.error);
  return (
    <section class="error-panel" aria-label="Error" style={{ "--colour": `var(${stateColour(detail.status)})` }}>
      <h2>
        Error
        {detail.party && <span class="error-tag">caused by: {cleanText(detail.party)}</span>}
        {detail.kind && detail.kind !== detail.party && <span class="error-tag">{cleanText(detail.kind)}</span>}
      </h2>
      <TextView text={message} format="plain" limit={1500} lines={8} />
      {traceback && (
        <details>
          <summary>Traceback</summary>
          <CodeView code={traceback} language="python" />
        </details>
      )}
    </section>
  );
}

/** Divide an error into the message and the traceback. The last line of a traceback is the message, if nothing else is. */
export function splitError(error: string): { message: string; traceback: string } {
  const start = error.search(/^[ \t|+]*(?:Exception Group )?Traceback \(most recent call last\):/m);
  if (start < 0) return { message: error, traceback: "" };
  const before = error.slice(0, start).trim();
  const traceback = error.slice(start).trimEnd();
  const last = traceback.slice(traceback.lastIndexOf("\n") + 1).trim();
  return { message: before || last, traceback };
}

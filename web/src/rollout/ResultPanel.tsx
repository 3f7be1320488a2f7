import type { ExecutionDetail } from "../api";
import { CodeView } from "../components/CodeView";
import { Formula, isFormula } from "../components/Formula";
import { TextView } from "../components/TextView";
import { formatScore } from "../format";
import { CUT_ENDINGS, verdictOf } from "../rows";
import { stateColour } from "../states";
import { cleanText, isBareCode } from "../text";

/** The error of the rollout, its answer beside the reference, and what the scorer wrote. */
export function ResultPanel({ detail }: { detail: ExecutionDetail }) {
  const isAsked = detail.steps.some((step) => step.kind === "user");
  const notes = detail.steps.filter((step) => step.kind === "score" && step.text !== "");
  const verdict = (detail.status === "completed" && verdictOf(detail.score)) || undefined;
  const answered = detail.answer !== null && detail.answer !== "";
  const cut = CUT_ENDINGS.includes(detail.ending);
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
              <AnswerText text={detail.reference} />
            </div>
          )}
          <div
            class={`answer${verdict ? " judged" : ""}`}
            style={verdict ? { "--colour": `var(${stateColour(verdict)})` } : undefined}
          >
            <h2>
              Answer
              {verdict && <span class="verdict">{verdict}</span>}
              {cut && <CutMark ending={detail.ending} follows={verdict !== undefined} />}
            </h2>
            {answered ? <AnswerText text={detail.answer ?? ""} /> : <span class="soft">none</span>}
          </div>
        </section>
      )}
      {notes.map((step) => (
        <section class="answers score-note" aria-label="Note of the scorer" key={step.index}>
          <div class="answer">
            <h2>
              {cleanText(step.name) || "Score"} {formatScore(detail.scores[step.name] ?? detail.score)}
            </h2>
            <TextView text={step.text} limit={600} lines={6} />
          </div>
        </section>
      ))}
    </>
  );
}

/** Says that the last reply was cut, after the verdict or alone. */
function CutMark({ ending, follows }: { ending: string; follows: boolean }) {
  return (
    <span class="cut cut-mark" title="The last reply was cut at the limit of tokens or of the context">
      {follows && "· "}
      {ending}
    </span>
  );
}

/** An answer, or the reference answers of a task, one on each line. The end of a long one has the result. */
export function AnswerText({ text }: { text: string }) {
  const lines = text.split("\n");
  if (lines.length <= MOST_REFERENCES && lines.some(isFormula)) {
    return lines.map((line, index) => (
      <div key={index}>{isFormula(line) ? <Formula source={line} /> : cleanText(line)}</div>
    ));
  }
  return <TextView text={text} format={isBareCode(text) ? "plain" : "markdown"} limit={1500} lines={16} part="end" />;
}

const MOST_REFERENCES = 20;

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

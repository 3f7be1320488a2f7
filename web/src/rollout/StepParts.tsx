import { useState } from "preact/hooks";
import type { TranscriptStep } from "../api";
import { formatCompact, formatDuration } from "../format";
import { settings } from "../source";
import { oneLine } from "../text";
import { useRollout } from "./context";
import { StepNotes } from "./Notes";
import { StepImage } from "./StepImage";

/** What is known about the making of a step, and what can be done with it. */
export function StepTools({ step }: { step: TranscriptStep }) {
  const { showRaw } = useRollout();
  const [adding, setAdding] = useState(false);
  return (
    <>
      <span class="step-facts">
        {facts(step).map(({ text, title }) => (
          <span key={title} title={title}>
            {text}
          </span>
        ))}
      </span>
      <span class="step-buttons">
        {step.raw && (
          <button type="button" class="small-button" onClick={() => showRaw(step.index)}>
            Raw<span class="visually-hidden"> request and response of step {step.index}</span>
          </button>
        )}
        {!settings.static && (
          <button type="button" class="small-button" onClick={() => setAdding(!adding)}>
            Note<span class="visually-hidden"> on step {step.index}</span>
          </button>
        )}
      </span>
      <StepNotes step={step.index} adding={adding} onDone={() => setAdding(false)} />
    </>
  );
}

interface Fact {
  text: string;
  title: string;
}

export function facts(step: TranscriptStep): Fact[] {
  const found: Fact[] = [];
  if (step.response_model)
    found.push({
      text: `by ${oneLine(step.response_model, 60)}`,
      title: "The model that answered, as the endpoint named it",
    });
  if (step.cached) found.push({ text: "from the cache", title: "Answered by --cache: not a fresh sample" });
  if (step.version !== null) found.push({ text: `version ${step.version}`, title: "Version of the policy" });
  if (step.sampled_tokens !== null)
    found.push({
      text: `${formatCompact(step.sampled_tokens)} ids`,
      title: "Recorded token ids of the reply; see Raw",
    });
  if (step.retries > 0)
    found.push({ text: step.retries === 1 ? "1 retry" : `${step.retries} retries`, title: "Retries of the request" });
  if (step.waited >= 0.05)
    found.push({ text: `waited ${formatDuration(step.waited)}`, title: "Waited for the endpoint" });
  if (step.finish_reason && !["stop", "tool_calls"].includes(step.finish_reason)) {
    found.push({ text: step.finish_reason, title: "Why the model stopped" });
  }
  if (step.prompt_tokens || step.completion_tokens) {
    const parts = [`${step.prompt_tokens ?? "–"} tokens in`];
    if (step.cached_tokens) parts.push(`${step.cached_tokens} of them cached`);
    parts.push(`${step.completion_tokens ?? "–"} out`);
    if (step.reasoning_tokens) parts.push(`${step.reasoning_tokens} of them reasoning`);
    const text = `${formatCompact(step.prompt_tokens)} → ${formatCompact(step.completion_tokens)} tok`;
    found.push({ text, title: parts.join(", ") });
  }
  if (step.seconds !== null) found.push({ text: formatDuration(step.seconds), title: "Duration" });
  if (step.at !== null) found.push({ text: `+${formatDuration(step.at)}`, title: "Began this long after the start" });
  return found;
}

/** Small pictures of the images of a step. */
export function Thumbnails({ step }: { step: TranscriptStep }) {
  const { run, execution, showImage } = useRollout();
  if (step.images.length === 0) return null;
  return (
    <div class="thumbnails">
      {step.images.map((name, index) => (
        <button
          type="button"
          key={name}
          class="thumbnail"
          onClick={() => showImage(step.index)}
          aria-label={`Show image ${index + 1} of step ${step.index}`}
        >
          <StepImage run={run} execution={execution} name={name} alt="" lazy />
        </button>
      ))}
    </div>
  );
}

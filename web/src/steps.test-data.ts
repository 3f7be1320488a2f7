import type { TranscriptStep } from "./api";

/** A step for tests. */
export function step(index: number, kind: string, text: string, others: Partial<TranscriptStep> = {}): TranscriptStep {
  return {
    index,
    kind,
    turn: 1,
    at: null,
    seconds: null,
    text,
    length: text.length,
    reasoning: "",
    calls: [],
    call: "",
    name: "",
    error: false,
    images: [],
    pointers: [],
    seen: "",
    request_id: "",
    prompt_tokens: null,
    completion_tokens: null,
    cached_tokens: null,
    reasoning_tokens: null,
    retries: 0,
    waited: 0,
    finish_reason: "",
    raw: false,
    branch: 0,
    response_model: "",
    cached: false,
    version: null,
    sampled_tokens: null,
    ...others,
  };
}

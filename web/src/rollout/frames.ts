/** The screenshots of a rollout in order, each with what the model did on it. */
import type { Pointer, TranscriptStep } from "../api";

export interface Frame {
  image: string;
  /** The step that brought the image. */
  from: number;
  /** The step that acted on it, or `from` if none did. */
  step: number;
  pointers: Pointer[];
}

/** One frame for each message that saw an image, and one for each image that no message saw. */
export function framesOf(steps: TranscriptStep[]): Frame[] {
  const frames: Frame[] = [];
  for (const step of steps) {
    if (step.seen) {
      const last = frames.at(-1);
      if (last && last.image === step.seen && last.step === last.from) {
        last.step = step.index;
        last.pointers = step.pointers;
      } else {
        const from = frames.findLast((frame) => frame.image === step.seen)?.from ?? step.index;
        frames.push({ image: step.seen, from, step: step.index, pointers: step.pointers });
      }
    }
    for (const image of step.images) frames.push({ image, from: step.index, step: step.index, pointers: [] });
  }
  return frames;
}

/** The position of the frame to show for a step: what it saw or brought, else the newest one before it. */
export function frameOf(frames: Frame[], step: number | null): number {
  if (step === null || frames.length === 0) return 0;
  const acted = frames.findIndex((frame) => frame.step === step);
  if (acted >= 0) return acted;
  const brought = frames.findIndex((frame) => frame.from === step);
  if (brought >= 0) return brought;
  return Math.max(
    0,
    frames.findLastIndex((frame) => frame.from <= step),
  );
}

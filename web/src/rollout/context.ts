import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { StepNote } from "../api";

/** What the parts of the page share. */
export interface RolloutContextValue {
  run: string;
  execution: number;
  /** Select a step: it is in the address, and all parts of the page show it. */
  select: (step: number) => void;
  showRaw: (step: number) => void;
  showImage: (step: number) => void;
  notes: StepNote[];
  /** Add a note, change it, or remove it with an empty text; undefined in an export. */
  writeNote: ((step: number, text: string, number: number | null) => Promise<void>) | undefined;
}

export const RolloutContext = createContext<RolloutContextValue>({
  run: "",
  execution: 0,
  select: () => {},
  showRaw: () => {},
  showImage: () => {},
  notes: [],
  writeNote: undefined,
});

export function useRollout(): RolloutContextValue {
  return useContext(RolloutContext);
}

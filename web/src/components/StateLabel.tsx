import { stateColour } from "../states";

/** The word of a state with its colour. The word is always there, so colour is never the only sign. */
export function StateLabel({ state }: { state: string }) {
  return (
    <span class="state" style={{ "--colour": `var(${stateColour(state)})` }}>
      {state}
    </span>
  );
}

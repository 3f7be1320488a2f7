import { type ColourName, stateColour } from "../states";

interface StateLabelProps {
  state: string;
  /** Instead of the colour of the state. */
  colour?: ColourName | undefined;
}

/** The word of a state with its colour. The word is always there, so colour is never the only sign. */
export function StateLabel({ state, colour }: StateLabelProps) {
  return (
    <span class="state" style={{ "--colour": `var(${colour ? `--state-${colour}` : stateColour(state)})` }}>
      {state}
    </span>
  );
}

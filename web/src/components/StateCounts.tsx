import { formatNumber } from "../format";
import { orderedStates } from "../resources";
import { StateLabel } from "./StateLabel";
import "./StateCounts.css";

/** How many things are in which state: `3 leased`, `1 free`. */
export function StateCounts({ counts }: { counts: Record<string, number> }) {
  return (
    <span class="state-counts">
      {orderedStates(counts).map(({ state, count }) => (
        <span key={state}>
          <span class="count">{formatNumber(count)}</span> <StateLabel state={state} />
        </span>
      ))}
    </span>
  );
}

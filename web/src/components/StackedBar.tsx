import { formatNumber } from "../format";
import { stateColour } from "../states";
import "./StackedBar.css";

export interface BarPart {
  state: string;
  count: number;
}

/** Parts of a whole as one bar. Pending parts have no colour. */
export function StackedBar({ parts, total }: { parts: BarPart[]; total: number }) {
  const shown = parts.filter((part) => part.count > 0);
  const words = shown.map((part) => `${formatNumber(part.count)} ${part.state}`).join(", ");
  return (
    <div class="stacked-bar" role="img" aria-label={words || "nothing yet"} title={words}>
      {shown
        .filter((part) => part.state !== "pending")
        .map((part) => (
          <span
            key={part.state}
            style={{
              width: `${(100 * part.count) / Math.max(1, total)}%`,
              "--colour": `var(${stateColour(part.state)})`,
            }}
          />
        ))}
    </div>
  );
}

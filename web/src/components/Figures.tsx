import type { ComponentChildren } from "preact";
import "./Figures.css";

export interface Figure {
  label: string;
  value: ComponentChildren;
  /** It takes the rest of the width. */
  wide?: boolean;
}

/** Numbers with their labels in one line. */
export function Figures({ figures }: { figures: Figure[] }) {
  return (
    <dl class="panel figures">
      {figures.map(({ label, value, wide }) => (
        <div key={label} class={`figure ${wide ? "wide" : ""}`}>
          <dt class="label">{label}</dt>
          <dd class="value">{value}</dd>
        </div>
      ))}
    </dl>
  );
}

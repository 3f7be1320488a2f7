import { formatInterval } from "../format";
import "./IntervalBar.css";

interface IntervalBarProps {
  mean: number;
  interval: [number, number] | null;
  /** The ends of the bar. */
  range?: [number, number];
}

/** A mean with its 95 % interval as a mark on a line. The number is shown beside it. */
export function IntervalBar({ mean, interval, range = [0, 1] }: IntervalBarProps) {
  const at = (value: number) =>
    (100 * (Math.min(range[1], Math.max(range[0], value)) - range[0])) / (range[1] - range[0]);
  const title = interval ? `95 % interval ${formatInterval(interval)}` : "no interval";
  return (
    <span class="interval-bar" title={title} aria-hidden="true">
      {interval && <span style={{ left: `${at(interval[0])}%`, width: `${at(interval[1]) - at(interval[0])}%` }} />}
      <span class="mean" style={{ left: `${at(mean)}%` }} />
    </span>
  );
}

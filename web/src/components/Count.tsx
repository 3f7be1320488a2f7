import { formatNumber } from "../format";

/** A number in a table: zero is faint, and with `bad`, everything else is red. */
export function Count({ value, bad = false }: { value: number; bad?: boolean }) {
  return <span class={value === 0 ? "count-zero" : bad ? "count-bad" : ""}>{formatNumber(value)}</span>;
}

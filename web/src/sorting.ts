/** The order of a table in the address: `name`, or `-name` for descending. */
import type { Sort } from "./components/DataTable";

export function parseSort(text: string | null): Sort | null {
  if (!text || text === "-") return null;
  return text.startsWith("-") ? { column: text.slice(1), descending: true } : { column: text, descending: false };
}

export function sortText(sort: Sort | null): string | null {
  return sort && `${sort.descending ? "-" : ""}${sort.column}`;
}

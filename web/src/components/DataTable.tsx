// biome-ignore-all lint/a11y/useSemanticElements: rows are positioned absolutely, which elements of tables do not allow
/**
 * A table with virtual rows: only the visible rows exist as elements, so that 100,000 rows scroll smoothly.
 *
 * The page scrolls, not a box inside it; the head sticks to `stickyTop`. The caller sorts: the table shows `sort` and asks for
 * another one with `onSort`. Keyboard: arrows, Home, End, Page Up and Page Down move the active row, Enter opens it, Space
 * selects it.
 */
import { type ColumnDef, rowSortingFeature, type SortingState, tableFeatures, useTable } from "@tanstack/preact-table";
import { Virtualizer } from "@tanstack/virtual-core";
import { Component, type ComponentChildren, type CSSProperties, type RefObject } from "preact";
import { useEffect, useId, useLayoutEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
import { navigate } from "../router";
import "./DataTable.css";

export interface DataColumn<T> {
  id: string;
  title: string;
  /** The width as a track of a CSS grid: `80px`, `minmax(120px, 2fr)`. */
  width: string;
  cell: (row: T) => ComponentChildren;
  /** The link of the row is in this column. */
  link?: boolean;
  /** Numbers are aligned at the right. */
  numeric?: boolean;
  sortable?: boolean;
  /** The first click sorts in descending order. */
  descendingFirst?: boolean;
  /** A longer text for the title. */
  hint?: string;
}

export interface Sort {
  column: string;
  descending: boolean;
}

export type RowKey = string | number;

export interface DataTableProps<T> {
  /** What the table contains, for screen readers. */
  label: string;
  /** Keep the array between renderings where possible. */
  columns: DataColumn<T>[];
  /** Records, or indexes into column arrays. */
  rows: ArrayLike<T>;
  /** Changes when rows have changed although they are the same values, such as indexes. */
  revision?: unknown;
  rowKey: (row: T) => RowKey;
  rowHref?: (row: T) => string;
  /** In pixels; all rows have the same height. */
  rowHeight?: number;
  /** Where the head sticks, in pixels below the top of the window. */
  stickyTop?: number;
  sort?: Sort | null;
  onSort?: (sort: Sort | null) => void;
  /** With these two, rows have a checkbox. */
  selected?: ReadonlySet<RowKey>;
  onSelect?: (key: RowKey, selected: boolean) => void;
  /** Shown instead of rows. */
  empty?: ComponentChildren;
}

/**
 * The width of a column of text: such columns share the room that the others leave by the longest text of each.
 *
 * `widest` is the most characters for which a column is made wider, `least` its smallest width in pixels.
 */
export function shareByLength(texts: Iterable<string>, widest = 28, least = 58): string {
  return `minmax(${least}px, ${2 + longestLength(texts, widest)}fr)`;
}

/** The same for ids, which often differ at their ends only: up to `widest` characters are never cut. */
export function shareOfIds(texts: Iterable<string>, widest: number, least: number): string {
  const longest = longestLength(texts, widest);
  return `minmax(${Math.max(least, ID_CHARACTER * longest)}px, ${2 + longest}fr)`;
}

/** The width of a character of an id, in pixels. */
const ID_CHARACTER = 8.5;

/** The length of the longest text, or `most`. */
function longestLength(texts: Iterable<string>, most: number): number {
  let longest = 0;
  for (const { length } of texts) {
    longest = Math.max(longest, length);
    if (longest >= most) return most;
  }
  return longest;
}

/** The height of the bar at the top of each page, where heads of tables stick. */
export const TOP_BAR = 48;

interface VisibleRow<T> {
  row: T;
  position: number;
}

const features = tableFeatures({ rowSortingFeature });

export function DataTable<T>(props: DataTableProps<T>) {
  const { label, columns, rows, rowKey, rowHref, rowHeight = 32, stickyTop = TOP_BAR, sort = null, selected } = props;
  const id = useId();
  const body = useRef<HTMLDivElement>(null);
  const positions = useVisiblePositions(body, rows.length, rowHeight, stickyTop);
  const [wanted, setActive] = useState(0);
  const active = Math.min(wanted, rows.length - 1);

  const data = positions.map((position): VisibleRow<T> => ({ row: rows[position] as T, position }));
  const definitions = useMemo(() => columns.map((column) => definition(column)), [columns]);
  const byId = useMemo(() => new Map(columns.map((column) => [column.id, column])), [columns]);
  const sorting: SortingState = sort ? [{ id: sort.column, desc: sort.descending }] : [];
  const table = useTable({
    features,
    columns: definitions,
    data,
    getRowId: (visible: VisibleRow<T>) => String(rowKey(visible.row)),
    manualSorting: true,
    enableMultiSort: false,
    state: { sorting },
    onSortingChange: (updater) => {
      const [first] = typeof updater === "function" ? updater(sorting) : updater;
      props.onSort?.(first ? { column: first.id, descending: first.desc } : null);
    },
  });

  const move = (position: number) => {
    const target = Math.max(0, Math.min(rows.length - 1, position));
    setActive(target);
    reveal(body.current, target, rowHeight, stickyTop);
  };
  const toggle = (row: T) => props.onSelect?.(rowKey(row), !selected?.has(rowKey(row)));
  const pressed = (event: KeyboardEvent) => {
    if (event.target !== event.currentTarget || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor((window.innerHeight - stickyTop) / rowHeight) - 3);
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
    const row = rows[active];
    if (event.key in steps) move(active + (steps[event.key] ?? 0));
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(rows.length - 1);
    else if (event.key === "Enter" && rowHref && row !== undefined) navigate(rowHref(row));
    else if (event.key === " " && selected && row !== undefined) toggle(row);
    else return;
    event.preventDefault();
  };

  // One object for all renderings, so that rows that did not change are not drawn again.
  const handlers = useRef<RowHandlers<T>>({ activate: setActive, toggle }).current;
  handlers.toggle = toggle;

  const tracks = [...(selected ? ["20px"] : []), ...columns.map((column) => column.width)].join(" ");
  const style = { "--tracks": tracks, "--sticky-top": `${stickyTop}px` } as CSSProperties;
  const rowId = (position: number) => `${id}-${position}`;
  return (
    <div
      class="data-table"
      role="grid"
      aria-label={label}
      aria-rowcount={rows.length + 1}
      aria-multiselectable={selected ? true : undefined}
      aria-activedescendant={positions.includes(active) ? rowId(active) : undefined}
      tabIndex={0}
      onKeyDown={pressed}
      style={style}
    >
      <div class="table-head" role="rowgroup">
        {table.getHeaderGroups().map((group) => (
          <div key={group.id} role="row" aria-rowindex={1} tabIndex={-1}>
            {selected && (
              <div role="columnheader" tabIndex={-1}>
                <span class="visually-hidden">Selected</span>
              </div>
            )}
            {group.headers.map((header) => {
              const column = byId.get(header.column.id);
              if (!column) return null;
              const sorted = column.sortable && props.onSort ? header.column.getIsSorted() : undefined;
              return (
                <div
                  key={header.id}
                  role="columnheader"
                  tabIndex={-1}
                  class={column.numeric ? "number" : ""}
                  aria-sort={sorted === undefined ? undefined : ARIA_SORT[String(sorted)]}
                  title={column.hint}
                >
                  {sorted === undefined ? (
                    column.title
                  ) : (
                    <button type="button" onClick={header.column.getToggleSortingHandler()}>
                      <span class="clipped">{column.title}</span>
                      <span class="sort-mark" aria-hidden="true">
                        {sorted === "asc" ? "↑" : sorted === "desc" ? "↓" : ""}
                      </span>
                    </button>
                  )}
                </div>
              );
            })}
          </div>
        ))}
      </div>
      {rows.length === 0 && props.empty}
      <div class="table-body" role="rowgroup" ref={body} style={{ height: `${rows.length * rowHeight}px` }}>
        {table.getRowModel().rows.map((visible) => {
          const { row, position } = visible.original;
          return (
            <TableRow
              key={visible.id}
              id={rowId(position)}
              row={row}
              name={visible.id}
              columns={columns}
              position={position}
              height={rowHeight}
              address={rowHref?.(row)}
              isActive={position === active}
              isSelected={selected?.has(rowKey(row))}
              revision={props.revision}
              handlers={handlers}
            />
          );
        })}
      </div>
    </div>
  );
}

interface RowHandlers<T> {
  activate: (position: number) => void;
  toggle: (row: T) => void;
}

interface TableRowProps<T> {
  id: string;
  row: T;
  name: string;
  columns: DataColumn<T>[];
  position: number;
  height: number;
  address: string | undefined;
  isActive: boolean;
  /** Undefined: the row has no checkbox. */
  isSelected: boolean | undefined;
  revision: unknown;
  handlers: RowHandlers<T>;
}

/** A row; drawn again only if one of its properties has changed. */
class TableRow<T> extends Component<TableRowProps<T>> {
  override shouldComponentUpdate(next: TableRowProps<T>): boolean {
    return Object.entries(next).some(([name, value]) => this.props[name as keyof TableRowProps<T>] !== value);
  }

  override render({
    id,
    row,
    name,
    columns,
    position,
    height,
    address,
    isActive,
    isSelected,
    handlers,
  }: TableRowProps<T>) {
    return (
      // biome-ignore lint/a11y/useKeyWithClickEvents: the grid has the keys
      <div
        id={id}
        role="row"
        tabIndex={-1}
        aria-rowindex={position + 2}
        aria-selected={isSelected}
        class={isActive ? "active" : ""}
        style={{ height: `${height}px`, transform: `translateY(${position * height}px)` }}
        onClick={(event) => {
          handlers.activate(position);
          openRow(event);
        }}
        onAuxClick={openRow}
      >
        {isSelected !== undefined && (
          <div class="select-cell" role="gridcell" tabIndex={-1}>
            <label>
              <span class="visually-hidden">Select {name}</span>
              <input type="checkbox" tabIndex={-1} checked={isSelected} onChange={() => handlers.toggle(row)} />
            </label>
          </div>
        )}
        {columns.map((column) => (
          <div key={column.id} role="gridcell" tabIndex={-1} class={column.numeric ? "number" : ""}>
            {column.link && address !== undefined ? (
              <a class="row-link" href={address} tabIndex={-1}>
                {column.cell(row)}
              </a>
            ) : (
              column.cell(row)
            )}
          </div>
        ))}
      </div>
    );
  }
}

/** Send a click on a part of the row that lies above its link to the link, so that the browser treats it as one. */
function openRow(event: MouseEvent & { currentTarget: HTMLElement }): void {
  if (event.button > 1 || (event.target as HTMLElement).closest("a, button, input, label")) return;
  const { button, shiftKey, metaKey } = event;
  const link = event.currentTarget.querySelector(".row-link");
  const ctrlKey = event.ctrlKey || button === 1;
  link?.dispatchEvent(new MouseEvent("click", { bubbles: false, cancelable: true, ctrlKey, shiftKey, metaKey }));
}

const ARIA_SORT: Record<string, "ascending" | "descending" | "none"> = {
  asc: "ascending",
  desc: "descending",
  false: "none",
};

function definition<T>(column: DataColumn<T>): ColumnDef<typeof features, VisibleRow<T>> {
  return {
    id: column.id,
    header: column.title,
    accessorFn: (visible: VisibleRow<T>) => visible.position,
    enableSorting: column.sortable ?? false,
    sortDescFirst: column.descendingFirst ?? false,
  };
}

/** The positions of the rows to draw: those in the window and some around them. */
function useVisiblePositions(
  body: RefObject<HTMLElement>,
  count: number,
  rowHeight: number,
  stickyTop: number,
): number[] {
  const [, draw] = useReducer((round: number) => round + 1, 0);
  const options = {
    count,
    estimateSize: () => rowHeight,
    overscan: 8,
    getScrollElement: () => window,
    initialRect: { width: window.innerWidth, height: window.innerHeight },
    observeElementRect: (_: unknown, changed: (rect: { width: number; height: number }) => void) =>
      listen(window, "resize", () => changed({ width: window.innerWidth, height: window.innerHeight })),
    // The offset is that of the window's top in the table, so it does not matter what is above the table.
    observeElementOffset: (_: unknown, changed: (offset: number, isScrolling: boolean) => void) => {
      const measure = () => {
        const top = body.current?.getBoundingClientRect().top ?? 0;
        changed(Math.max(0, stickyTop - top), false);
      };
      const observer = new ResizeObserver(measure);
      observer.observe(document.body);
      const stop = listen(window, "scroll", measure);
      return () => {
        observer.disconnect();
        stop();
      };
    },
    scrollToFn: () => {}, // `reveal` scrolls
    onChange: () => draw(undefined),
  };
  const [virtualizer] = useState(() => new Virtualizer<Window, HTMLElement>(options));
  virtualizer.setOptions(options);
  useLayoutEffect(() => virtualizer._willUpdate());
  useLayoutEffect(() => virtualizer._didMount(), [virtualizer]);
  useEffect(() => virtualizer.measure(), [virtualizer, rowHeight]);
  return virtualizer.getVirtualIndexes().filter((position) => position < count);
}

function listen(target: Window, event: string, handle: () => void): () => void {
  handle();
  target.addEventListener(event, handle, { passive: true });
  return () => target.removeEventListener(event, handle);
}

/** Scroll the page so that a row is fully visible below the head. */
function reveal(body: HTMLElement | null, position: number, rowHeight: number, stickyTop: number): void {
  if (!body) return;
  const head = body.parentElement?.querySelector(".table-head")?.clientHeight ?? 0;
  const top = body.getBoundingClientRect().top + position * rowHeight;
  const above = top - stickyTop - head;
  const below = top + rowHeight - window.innerHeight;
  if (above < 0) window.scrollBy({ top: above });
  else if (below > 0) window.scrollBy({ top: below + 8 });
}

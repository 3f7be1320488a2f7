import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ExecutionDetail, Timeline as TimelineRecord } from "../api";
import { formatDuration, formatNumber, formatPercent } from "../format";
import { href, navigate, setParams, useRoute } from "../router";
import { load, settings, useData } from "../source";
import {
  AXIS_HEIGHT,
  drawAxis,
  drawMarks,
  drawShares,
  drawTracks,
  gutter,
  prepare,
  readPalette,
} from "../timeline/draw";
import {
  type Described,
  describedText,
  describeShares,
  describeSpot,
  moveSpot,
  type NamedExecution,
  type Spot,
} from "../timeline/hover";
import { brushed, clock, type Interval, readInterval, TimeScale, writeTime } from "../timeline/scale";
import {
  columnAt,
  IDLE,
  kindShares,
  layoutTracks,
  type Order,
  rowAt,
  spanAt,
  trackShares,
  trackTitle,
} from "../timeline/tracks";
import { Message } from "./Message";
import { StateLabel } from "./StateLabel";
import "./Timeline.css";

const POLL_SECONDS = 2;
const SHARES_HEIGHT = 84;
/** Of all tracks, in pixels, and as a part of the window: the page around the timeline shall be visible. As in Timeline.css. */
const LEAST_HEIGHT = 170;
const MOST_HEIGHT = 420;
const WINDOW_PART = 0.27;
const DOUBLE_CLICK_MS = 260;

interface TimelineProps {
  run: string;
  /** Whether the run is live: the timeline is loaded again every two seconds. */
  live?: boolean;
  /** The rollout of an execution, if the page knows it; used for tooltips and links. */
  name?: (execution: number) => NamedExecution | undefined;
}

/**
 * What machines and workers did. Dragging sets `from` and `to` of the address (seconds since the epoch), `view` is the
 * part that is enlarged, `order`, `rows` and `activity` are how it is shown.
 */
export function Timeline({ run, live = false, name }: TimelineProps) {
  const { params } = useRoute();
  const [width, place] = useWidth();
  const zoom = readView(params.get("view"));
  const buckets = Math.min(2000, Math.max(400, Math.ceil(width / 200) * 200));
  const { data, error, reload } = useData<TimelineRecord>(
    width > 0 ? ["runs", run, "timeline"] : null,
    zoom === null ? { buckets } : { buckets, from: zoom[0], to: zoom[1] },
  );
  usePolling(live && !settings.static, reload);
  let content: ComponentChildren = <Message kind="loading">Loading…</Message>;
  if (data !== undefined && width > 0) {
    content = <TimelineView run={run} timeline={data} width={width} zoom={zoom} {...(name ? { name } : {})} />;
  } else if (error !== "") {
    content = <Message kind="error">{error}</Message>;
  }
  return (
    <section class="panel timeline" aria-label="Timeline" ref={place}>
      {content}
    </section>
  );
}

interface ViewProps {
  run: string;
  timeline: TimelineRecord;
  width: number;
  /** The enlarged part, in seconds since the epoch. */
  zoom: Interval | null;
  name?: (execution: number) => NamedExecution | undefined;
}

/** The timeline of loaded data; `Timeline` loads it. */
export function TimelineView({ run, timeline, width, zoom, name = () => undefined }: ViewProps) {
  const { params } = useRoute();
  const order: Order = params.get("order") === "busy" ? "busy" : "name";
  const fit = params.get("rows") === "fit";
  const onlyWord = params.get("activity");
  const only = onlyWord !== null && timeline.states.includes(onlyWord) ? timeline.states.indexOf(onlyWord) : null;
  const theme = useTheme();
  const [scrollbar, setScrollbar] = useState(0);
  const [drag, setDrag] = useState<{ anchor: number; x: number } | null>(null);
  const [pointer, setPointer] = useState<{ x: number; y: number } | null>(null);
  const [cursor, setCursor] = useState<Spot | null>(null);
  const [top, setTop] = useState(0);
  const axis = useRef<HTMLCanvasElement>(null);
  const tracks = useRef<HTMLCanvasElement>(null);
  const areas = useRef<HTMLCanvasElement>(null);
  const overlay = useRef<HTMLCanvasElement>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const plot = useRef<HTMLDivElement>(null);
  const click = useRef<number>(0);

  const full = width - scrollbar;
  const [start, end] =
    zoom === null
      ? [timeline.start, Math.max(timeline.end, timeline.start + 0.001)]
      : [zoom[0] - timeline.origin, zoom[1] - timeline.origin];
  const scale = useMemo(
    () => new TimeScale(start, end, timeline.sessions, gutter(full), Math.max(50, full - gutter(full) - 14)),
    [start, end, timeline.sessions, full],
  );
  const most = Math.min(MOST_HEIGHT, Math.max(LEAST_HEIGHT, Math.round(window.innerHeight * WINDOW_PART)));
  const layout = useMemo(
    () => layoutTracks(timeline.tracks, order, fit ? most - 4 : null),
    [timeline, order, fit, most],
  );
  const height = Math.min(layout.height + 4, most);
  const palette = useMemo(() => readPalette(timeline.states), [timeline.states.join(), theme]);
  const workerShares = useMemo(() => kindShares(timeline, "worker", scale), [timeline, scale]);
  const machineShares = useMemo(() => kindShares(timeline, "machine", scale), [timeline, scale]);
  const table = useMemo(() => <TrackTable timeline={timeline} scale={scale} />, [timeline, scale]);
  const withShares = timeline.tracks.filter((track) => track.kind === "worker").length > 1;

  useLayoutEffect(() => {
    const element = scroller.current;
    if (element !== null) setScrollbar(element.offsetWidth - element.clientWidth);
  }, [layout.height, height, width]);

  const view = { timeline, layout, scale, palette, width: full, only };
  useLayoutEffect(() => {
    const onAxis = axis.current && prepare(axis.current, full, AXIS_HEIGHT);
    if (onAxis) drawAxis(onAxis, scale, timeline.origin, palette);
    const onAreas = areas.current && prepare(areas.current, full, SHARES_HEIGHT);
    const stack = workerShares.map((each) => timeline.states.indexOf(each.state)).filter((state) => state >= 0);
    if (onAreas) drawShares(onAreas, stack, { ...view, height: SHARES_HEIGHT });
  }, [timeline, scale, palette, full, only, workerShares, withShares]);
  useLayoutEffect(() => {
    const context = tracks.current && prepare(tracks.current, full, height);
    if (context) drawTracks(context, { ...view, top, height });
  }, [timeline, layout, scale, palette, full, only, top, height]);

  const overlayHeight = AXIS_HEIGHT + height + (withShares ? SHARES_HEIGHT + 7 : 0);
  const selected = readInterval(params.get("from"), params.get("to"));
  const selection: Interval | null =
    selected === null
      ? null
      : [Math.max(start, selected[0] - timeline.origin), Math.min(end, selected[1] - timeline.origin)];
  const brush = drag === null ? selection : brushed(scale, drag.anchor, drag.x);
  const spot = pointer === null ? null : spotAt(pointer);
  const shown = spot ?? cursor;
  const isOnShares = pointer !== null && withShares && pointer.y > AXIS_HEIGHT + height && pointer.x >= scale.left;
  const column = isOnShares ? columnAt(timeline, scale.time(pointer.x)) : null;
  useLayoutEffect(() => {
    const context = overlay.current && prepare(overlay.current, full, overlayHeight);
    if (context) {
      drawMarks(context, scale, { brush, x: pointer?.x ?? null, box: boxOf(shown) }, palette, overlayHeight);
    }
  });

  function spotAt({ x, y }: { x: number; y: number }): Spot | null {
    const inTracks = y - AXIS_HEIGHT;
    if (inTracks < 0 || inTracks >= height) return null;
    const row = rowAt(layout, inTracks + top);
    if (row === null || row.track === null) return null;
    if (x < scale.left) return { row, span: null };
    const tolerance = Math.abs(scale.time(x + 2) - scale.time(x));
    return { row, span: spanAt(row.track.spans, scale.time(x), tolerance) };
  }

  function boxOf(place: Spot | null) {
    const span = place === null || place.span === null ? undefined : place.row.track?.spans[place.span];
    if (place === null || span === undefined) return null;
    const y = place.row.y - top;
    if (y < -place.row.height || y > height) return null;
    const left = scale.x(span[0]);
    return { left, top: AXIS_HEIGHT + y, width: scale.x(span[1]) - left, height: place.row.height };
  }

  function position(event: PointerEvent | MouseEvent): { x: number; y: number } {
    const box = (plot.current as HTMLDivElement).getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  const open = useCallback(
    async (execution: number, tab: boolean) => {
      const known = name(execution) ?? (await load<ExecutionDetail>(["runs", run, "executions", execution]));
      const address = href(["run", run, "rollout", known.task, known.attempt], { execution });
      if (tab) window.open(address, "_blank", "noopener");
      else navigate(address);
    },
    [run, name],
  );

  function openSpot(place: Spot | null, tab = false): void {
    const span = place === null || place.span === null ? undefined : place.row.track?.spans[place.span];
    if (span !== undefined && span[3] !== 0) void open(span[3], tab);
  }

  const clear = () => setParams({ from: null, to: null });
  const select = (from: number, to: number) =>
    setParams({ from: writeTime(timeline.origin + from), to: writeTime(timeline.origin + to) });

  function pressed(event: PointerEvent): void {
    const { x } = position(event);
    if (event.button !== 0 || x < scale.left || x > full) return;
    plot.current?.setPointerCapture(event.pointerId);
    setDrag({ anchor: x, x });
  }

  function moved(event: PointerEvent): void {
    const at = position(event);
    setPointer(at);
    if (drag !== null) setDrag({ ...drag, x: at.x });
  }

  function released(event: PointerEvent): void {
    if (drag === null) return;
    setDrag(null);
    const at = position(event);
    const chosen = brushed(scale, drag.anchor, at.x);
    if (chosen !== null) {
      select(...chosen);
      return;
    }
    // A second click clears the selection, so the first one must not leave the page at once.
    const here = spotAt(at);
    const tab = event.ctrlKey || event.metaKey;
    window.clearTimeout(click.current);
    click.current = window.setTimeout(() => openSpot(here, tab), selected === null ? 0 : DOUBLE_CLICK_MS);
  }

  function doubleClicked(): void {
    window.clearTimeout(click.current);
    clear();
  }

  function keyPressed(event: KeyboardEvent): void {
    if (event.key === "Escape") {
      if (drag !== null) setDrag(null);
      else if (selected !== null) clear();
      else setCursor(null);
    } else if (event.key === "Enter" && cursor !== null) {
      const span = cursor.span === null ? undefined : cursor.row.track?.spans[cursor.span];
      if (event.shiftKey && span !== undefined) select(span[0], span[1]);
      else openSpot(cursor, event.ctrlKey || event.metaKey);
    } else if (["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) {
      setPointer(null);
      const next = moveSpot(layout, cursor, event.key, scale);
      setCursor(next);
      const element = scroller.current;
      if (next !== null && element !== null) {
        if (next.row.y < element.scrollTop) element.scrollTop = next.row.y - next.row.height;
        else if (next.row.y + next.row.height > element.scrollTop + height) {
          element.scrollTop = next.row.y + next.row.height - height;
        }
      }
    } else return;
    event.preventDefault();
  }

  const spoken = cursor === null ? "" : describedText(describeSpot(timeline, cursor, start, name));
  if (timeline.tracks.length === 0) {
    return <Message>Nothing was recorded for the timeline of this run yet.</Message>;
  }
  return (
    <>
      <header>
        <h2>Timeline</h2>
        <Utilisation label="Machines" value={timeline.machine_utilisation} />
        <Utilisation label="Workers" value={timeline.worker_utilisation} />
        <div class="timeline-tools">
          {selected !== null && selection !== null && (
            <span class="timeline-selection">
              {clock(timeline.origin + selection[0])} – {clock(timeline.origin + selection[1])},{" "}
              {formatDuration(Math.max(0, selection[1] - selection[0]))}
              {params.get("view") !== viewOf(selected) && (
                <button type="button" class="button" onClick={() => setParams({ view: viewOf(selected) })}>
                  Zoom in
                </button>
              )}
              <button type="button" class="icon-button" onClick={clear} aria-label="Clear the selected time">
                ×
              </button>
            </span>
          )}
          {zoom !== null && (
            <button type="button" class="button" onClick={() => setParams({ view: null })}>
              Show all
            </button>
          )}
          <label>
            Order
            <select
              value={order}
              onChange={(event) => setParams({ order: event.currentTarget.value === "busy" ? "busy" : null })}
            >
              <option value="name">by name</option>
              <option value="busy">least busy first</option>
            </select>
          </label>
          {layout.tracks.length > 12 && (
            <label>
              <input
                type="checkbox"
                checked={fit}
                onChange={(event) => setParams({ rows: event.currentTarget.checked ? "fit" : null })}
              />
              Fit height
            </label>
          )}
        </div>
      </header>
      <div
        class="timeline-plot"
        ref={plot}
        role="application"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: the drawing is used with the keyboard
        tabIndex={0}
        aria-label="Timeline: arrow keys move along tracks and their spans, Enter opens the rollout, Shift and Enter select the time, Escape clears the selection. A table with the same figures follows."
        onPointerDown={pressed}
        onPointerMove={moved}
        onPointerUp={released}
        onPointerCancel={() => setDrag(null)}
        onPointerLeave={() => setPointer(null)}
        onDblClick={doubleClicked}
        onKeyDown={keyPressed}
      >
        <canvas ref={axis} />
        <div
          class="timeline-scroller"
          ref={scroller}
          style={{ height: `${height}px` }}
          onScroll={(event) => setTop(event.currentTarget.scrollTop)}
        >
          <div style={{ height: `${layout.height + 4}px` }}>
            <canvas ref={tracks} />
          </div>
        </div>
        {withShares && (
          <div class="timeline-shares">
            <canvas ref={areas} />
          </div>
        )}
        <canvas class="timeline-overlay" ref={overlay} />
        {pointer !== null && drag === null && (
          <Tip at={pointer} width={full}>
            {spot !== null ? (
              <SpotTip
                described={describeSpot(timeline, spot, scale.time(pointer.x), name)}
                inside={pointer.x >= scale.left}
                busy={spot.row.track?.busy ?? 0}
              />
            ) : column !== null ? (
              <SharesTip
                time={clock(timeline.origin + scale.time(pointer.x))}
                lines={describeShares(timeline, column)}
              />
            ) : null}
          </Tip>
        )}
        <div class="visually-hidden" aria-live="polite">
          {spoken}
        </div>
      </div>
      <div class="timeline-legends">
        <Legend label="Machines" shares={machineShares} only={onlyWord} />
        <Legend label="Workers" shares={workerShares} only={onlyWord} />
      </div>
      {timeline.hidden > 0 && (
        <p class="timeline-hidden soft">
          Only the {formatNumber(timeline.tracks.length)} least busy tracks are shown; {formatNumber(timeline.hidden)}{" "}
          more are not.
        </p>
      )}
      {table}
    </>
  );
}

function Utilisation({ label, value }: { label: string; value: number | null }) {
  if (value === null) return null;
  return (
    <span class="timeline-figure">
      {label} <b>{formatPercent(value)}</b> busy
    </span>
  );
}

function Legend({
  label,
  shares,
  only,
}: {
  label: string;
  shares: { state: string; share: number }[];
  only: string | null;
}) {
  if (shares.length === 0) return null;
  return (
    <>
      <span class="soft">{label}</span>
      <ul>
        {shares.map(({ state, share }) => (
          <li key={state}>
            <button
              type="button"
              aria-pressed={only === state}
              disabled={state === IDLE}
              title={only === state ? "Show all states" : `Show only: ${state}`}
              onClick={() => setParams({ activity: only === state ? null : state })}
            >
              <StateLabel state={state} />
              <span class="share">{share < 0.005 ? "< 1 %" : formatPercent(share)}</span>
            </button>
          </li>
        ))}
      </ul>
    </>
  );
}

function Tip({ at, width, children }: { at: { x: number; y: number }; width: number; children: ComponentChildren }) {
  if (children === null) return null;
  const right = at.x > width - 340;
  const style = right
    ? { right: `${width - at.x + 14}px`, top: `${at.y + 16}px` }
    : { left: `${at.x + 14}px`, top: `${at.y + 16}px` };
  return (
    <div class="timeline-tip" style={style}>
      {children}
    </div>
  );
}

function SpotTip({ described, inside, busy }: { described: Described; inside: boolean; busy: number }) {
  if (!inside) {
    return (
      <>
        <div>{described.where}</div>
        <div class="soft">{formatPercent(busy)} busy</div>
      </>
    );
  }
  return (
    <>
      <StateLabel state={described.state} />
      {described.task !== "" && <div class="clipped">{described.task}</div>}
      <div class="soft">{described.when}</div>
      <div class="soft">{described.where}</div>
    </>
  );
}

function SharesTip({ time, lines }: { time: string; lines: [string, string][] }) {
  return (
    <>
      <div class="soft">{time}</div>
      {lines.map(([state, share]) => (
        <div key={state}>
          <StateLabel state={state} /> {share}
        </div>
      ))}
    </>
  );
}

/** The same figures for screen readers. */
function TrackTable({ timeline, scale }: { timeline: TimelineRecord; scale: TimeScale }) {
  const rows = useMemo(
    () =>
      timeline.tracks.map((track) => ({
        title: trackTitle(track),
        busy: track.busy,
        shares: trackShares(timeline, track, scale),
      })),
    [timeline, scale],
  );
  return (
    <table class="visually-hidden">
      <caption>What each machine and each place of a worker did in the shown time</caption>
      <thead>
        <tr>
          <th scope="col">Track</th>
          <th scope="col">Busy</th>
          <th scope="col">States</th>
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <tr key={row.title}>
            <th scope="row">{row.title}</th>
            <td>{formatPercent(row.busy)}</td>
            <td>{row.shares.map(({ state, share }) => `${state} ${formatPercent(share)}`).join(", ")}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function viewOf(interval: Interval): string {
  return interval.map((time) => writeTime(time)).join(",");
}

function readView(value: string | null): Interval | null {
  const [from = "", to = ""] = (value ?? "").split(",");
  const read = readInterval(from, to);
  return read?.every(Number.isFinite) ? read : null;
}

/** The width of an element, measured again when it changes. */
function useWidth(): [number, (element: HTMLElement | null) => void] {
  const [width, setWidth] = useState(0);
  const observer = useRef<ResizeObserver | null>(null);
  const place = useCallback((element: HTMLElement | null) => {
    observer.current?.disconnect();
    if (element === null) return;
    setWidth(element.clientWidth);
    observer.current = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.current.observe(element);
  }, []);
  return [width, place];
}

function usePolling(active: boolean, reload: () => void): void {
  useEffect(() => {
    if (!active) return;
    const timer = window.setInterval(() => {
      if (!document.hidden) reload();
    }, POLL_SECONDS * 1000);
    return () => window.clearInterval(timer);
  }, [active, reload]);
}

/** Changes when the theme does, so that canvases are drawn again. */
function useTheme(): number {
  const [round, setRound] = useState(0);
  useEffect(() => {
    const changed = () => setRound((before) => before + 1);
    window.addEventListener("themechange", changed);
    return () => window.removeEventListener("themechange", changed);
  }, []);
  return round;
}

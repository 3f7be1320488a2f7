/** Drawing of the timeline on canvases. */
import type { Timeline } from "../api";
import { formatDuration, formatPercent } from "../format";
import { stateColour } from "../states";
import { type TimeScale, ticks } from "./scale";
import { firstSpanAfter, LABEL_HEIGHT, type Row, type TrackLayout } from "./tracks";

/** The width of the labels, and where there is little room. */
export const GUTTER = 190;
const NARROW_GUTTER = 132;
const NARROW = 900;

export const AXIS_HEIGHT = 24;
const FONT = "12px system-ui, sans-serif";
const SMALL_FONT = "11px system-ui, sans-serif";

export function gutter(width: number): number {
  return width < NARROW ? NARROW_GUTTER : GUTTER;
}

/** States without work are pale, so that waiting and failures stand out. */
const PALE = new Set(["free", "stopped", "closing"]);

export interface Palette {
  text: string;
  soft: string;
  faint: string;
  line: string;
  surface: string;
  sunken: string;
  accent: string;
  states: string[];
}

export function readPalette(states: string[]): Palette {
  const style = getComputedStyle(document.documentElement);
  const value = (name: string) => style.getPropertyValue(name).trim();
  return {
    text: value("--text"),
    soft: value("--text-soft"),
    faint: value("--text-faint"),
    line: value("--line"),
    surface: value("--surface"),
    sunken: value("--surface-sunken"),
    accent: value("--accent"),
    states: states.map((state) => value(stateColour(state))),
  };
}

/** Make the canvas as large as its place in pixels of the screen, and empty it. */
export function prepare(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D | null {
  const ratio = window.devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context?.setTransform(ratio, 0, 0, ratio, 0, 0);
  context?.clearRect(0, 0, width, height);
  return context;
}

export function drawAxis(context: CanvasRenderingContext2D, scale: TimeScale, origin: number, palette: Palette): void {
  context.font = SMALL_FONT;
  context.textBaseline = "middle";
  context.fillStyle = palette.faint;
  context.textAlign = "right";
  const day = new Date((origin + scale.start) * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  context.fillText(day, scale.left - 10, AXIS_HEIGHT / 2);
  context.textAlign = "left";
  let free = Number.NEGATIVE_INFINITY;
  for (const tick of ticks(scale, origin)) {
    context.fillStyle = palette.line;
    context.fillRect(Math.round(tick.x), AXIS_HEIGHT - 7, 1, 7);
    if (tick.x < free) continue;
    context.fillStyle = palette.soft;
    context.fillText(tick.label, tick.x + 4, AXIS_HEIGHT / 2);
    free = tick.x + context.measureText(tick.label).width + 10;
  }
}

export interface TrackView {
  timeline: Timeline;
  layout: TrackLayout;
  scale: TimeScale;
  palette: Palette;
  /** The scrolled distance and the visible size. */
  top: number;
  width: number;
  height: number;
  /** The index of the state to show; others are pale. Null: all. */
  only: number | null;
}

export function drawTracks(context: CanvasRenderingContext2D, view: TrackView): void {
  const visible = view.layout.rows.filter((row) => row.y + row.height > view.top && row.y < view.top + view.height);
  for (const tick of ticks(view.scale, view.timeline.origin)) {
    context.fillStyle = view.palette.line;
    context.globalAlpha = 0.6;
    context.fillRect(Math.round(tick.x), 0, 1, view.height);
    context.globalAlpha = 1;
  }
  for (const row of visible) {
    if (row.track === null) drawHeading(context, row, view);
    else drawTrack(context, row, view);
  }
  drawGaps(context, view.scale, view.height, view.palette);
}

function drawHeading(context: CanvasRenderingContext2D, row: Row, view: TrackView): void {
  const y = row.y - view.top;
  context.fillStyle = view.palette.surface;
  context.fillRect(0, y, view.width, row.height);
  context.fillStyle = view.palette.text;
  context.font = `600 ${FONT}`;
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.fillText(row.label, 14, y + row.height / 2 + 2);
}

function drawTrack(context: CanvasRenderingContext2D, row: Row, view: TrackView): void {
  const { scale, palette } = view;
  const y = row.y - view.top;
  const gap = row.height >= 10 ? 2 : row.height >= 5 ? 1 : 0;
  const [top, height] = [y + gap / 2, row.height - gap];
  context.fillStyle = palette.sunken;
  context.fillRect(scale.left, top, scale.width, height);
  if (row.height >= LABEL_HEIGHT && row.track !== null) {
    context.font = SMALL_FONT;
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillStyle = palette.soft;
    context.fillText(fitted(context, row.label, scale.left - 62), 14, y + row.height / 2);
    context.textAlign = "right";
    context.fillStyle = row.track.busy < 0.5 ? palette.text : palette.faint;
    context.fillText(formatPercent(row.track.busy), scale.left - 10, y + row.height / 2);
  }
  const spans = row.track?.spans ?? [];
  for (let index = firstSpanAfter(spans, scale.start); index < spans.length; index += 1) {
    const [from, to, state] = spans[index] as [number, number, number, number];
    if (from >= scale.end) break;
    const left = scale.x(from);
    const right = scale.x(to);
    const wide = Math.max(0.75, right - left);
    context.fillStyle = palette.states[state] ?? palette.faint;
    context.globalAlpha = alpha(view, state);
    context.fillRect(left, top, wide > 3 ? wide - 0.5 : wide, height);
  }
  context.globalAlpha = 1;
}

function alpha(view: TrackView, state: number): number {
  if (view.only !== null) return view.only === state ? 1 : 0.12;
  return PALE.has(view.timeline.states[state] ?? "") ? 0.28 : 0.92;
}

/** Hatch the time between sessions. */
function drawGaps(context: CanvasRenderingContext2D, scale: TimeScale, height: number, palette: Palette): void {
  for (const gap of scale.gaps) {
    context.save();
    context.beginPath();
    context.rect(gap.x, 0, gap.width, height);
    context.clip();
    context.fillStyle = palette.surface;
    context.fillRect(gap.x, 0, gap.width, height);
    context.strokeStyle = palette.line;
    context.lineWidth = 1;
    for (let x = gap.x - height; x < gap.x + gap.width; x += 7) {
      context.beginPath();
      context.moveTo(x, height);
      context.lineTo(x + height, 0);
      context.stroke();
    }
    context.restore();
    context.save();
    context.font = SMALL_FONT;
    context.fillStyle = palette.soft;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.translate(gap.x + gap.width / 2, Math.min(height / 2, 90));
    context.rotate(-Math.PI / 2);
    const text = `stopped ${formatDuration(gap.to - gap.from)}`;
    const wide = context.measureText(text).width + 8;
    if (wide < height) {
      context.fillStyle = palette.surface;
      context.fillRect(-wide / 2, -8, wide, 16);
      context.fillStyle = palette.soft;
      context.fillText(text, 0, 0);
    }
    context.restore();
  }
}

/** Stacked areas: what all places of workers did. `order` has the states from the bottom up. */
export function drawShares(
  context: CanvasRenderingContext2D,
  order: number[],
  view: Omit<TrackView, "layout" | "top">,
): void {
  const { scale, palette, height, timeline } = view;
  context.fillStyle = palette.sunken;
  context.fillRect(scale.left, 0, scale.width, height);
  const base = new Float64Array(timeline.columns.length);
  const edges = timeline.columns.map(([from, to]): [number, number] => [scale.x(from), scale.x(to)]);
  for (const state of order) {
    const values = timeline.worker_shares[state] ?? [];
    context.fillStyle = palette.states[state] ?? palette.faint;
    context.globalAlpha = view.only !== null && view.only !== state ? 0.12 : 0.92;
    const path = new Path2D(); // one path for each state: rectangles side by side would leave seams
    path.moveTo(scale.left, height);
    for (const [column, [left, right]] of edges.entries()) {
      const y = height - Math.min(1, (base[column] ?? 0) + (values[column] ?? 0)) * height;
      path.lineTo(left, y);
      path.lineTo(right, y);
    }
    for (let column = edges.length - 1; column >= 0; column -= 1) {
      const [left = 0, right = 0] = edges[column] ?? [];
      const y = height - Math.min(1, base[column] ?? 0) * height;
      path.lineTo(right, y);
      path.lineTo(left, y);
      base[column] = (base[column] ?? 0) + (values[column] ?? 0);
    }
    context.fill(path);
  }
  context.globalAlpha = 1;
  context.font = SMALL_FONT;
  context.fillStyle = palette.faint;
  context.textAlign = "right";
  context.textBaseline = "top";
  context.fillText("100 %", scale.left - 10, 0);
  context.textBaseline = "alphabetic";
  context.fillText("0 %", scale.left - 10, height - 1);
  context.textAlign = "left";
  context.fillStyle = palette.soft;
  context.textBaseline = "middle";
  context.fillText("All places", 14, height / 2);
  drawGaps(context, scale, height, palette);
}

export interface Marks {
  brush: [number, number] | null;
  /** The position of the pointer. */
  x: number | null;
  /** The row and the span under the pointer or the keyboard, in pixels of the overlay. */
  box: { left: number; top: number; width: number; height: number } | null;
}

export function drawMarks(
  context: CanvasRenderingContext2D,
  scale: TimeScale,
  marks: Marks,
  palette: Palette,
  height: number,
): void {
  if (marks.brush !== null) {
    const [left, right] = marks.brush.map((time) => scale.x(time)) as [number, number];
    context.fillStyle = palette.surface;
    context.globalAlpha = 0.62;
    context.fillRect(scale.left, 0, left - scale.left, height);
    context.fillRect(right, 0, scale.left + scale.width - right, height);
    context.globalAlpha = 1;
    context.fillStyle = palette.accent;
    context.fillRect(left - 1, 0, 2, height);
    context.fillRect(right - 1, 0, 2, height);
    context.fillRect(left, 0, right - left, 3);
  }
  if (marks.x !== null && marks.x >= scale.left) {
    context.fillStyle = palette.faint;
    context.fillRect(Math.round(marks.x), 0, 1, height);
  }
  if (marks.box !== null) {
    context.strokeStyle = palette.text;
    context.lineWidth = 2;
    const { left, top, width, height: high } = marks.box;
    context.strokeRect(left - 1, top, Math.max(4, width + 2), high);
  }
}

function fitted(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  let keep = text.length - 1;
  while (keep > 2 && context.measureText(`…${text.slice(-keep)}`).width > width) keep -= 1;
  return `…${text.slice(-keep)}`;
}

/** Where to draw actions on a screenshot, in pixels of the image. */
import type { Pointer } from "../api";
import { oneLine } from "../text";

export interface Size {
  width: number;
  height: number;
}

interface Place {
  x: number;
  y: number;
  /** Whether the action was outside the image; it is drawn at the edge. */
  outside: boolean;
}

export type Shape = Place &
  (
    | { kind: "ring"; rings: number; right: boolean }
    | { kind: "cross" }
    | { kind: "arrow"; toX: number; toY: number }
    | { kind: "scroll" }
    | { kind: "text"; text: string }
  );

/** The shapes of actions. An action without a place has none. */
export function shapesOf(pointers: Pointer[], size: Size): Shape[] {
  return pointers.flatMap((pointer) => shapeOf(pointer, size) ?? []);
}

function shapeOf(pointer: Pointer, size: Size): Shape | null {
  const place = placeIn(pointer.x, pointer.y, size);
  if (pointer.kind === "drag") {
    const target = placeIn(pointer.to_x, pointer.to_y, size);
    if (place && target) {
      return { ...place, kind: "arrow", toX: target.x, toY: target.y, outside: place.outside || target.outside };
    }
    const end = target ?? place; // it began where the pointer was
    return end && { ...end, kind: "cross" };
  }
  if (place === null) return null;
  switch (pointer.kind) {
    case "click":
      return { ...place, kind: "ring", rings: 1, right: false };
    case "double click":
      return { ...place, kind: "ring", rings: 2, right: false };
    case "right click":
      return { ...place, kind: "ring", rings: 1, right: true };
    case "scroll":
      return { ...place, kind: "scroll" };
    case "type":
    case "key":
      return { ...place, kind: "text", text: oneLine(pointer.text, 60) };
    default:
      return { ...place, kind: "cross" };
  }
}

function placeIn(x: number | null, y: number | null, size: Size): Place | null {
  if (x === null || y === null || !Number.isFinite(x) || !Number.isFinite(y)) return null;
  const inside = { x: Math.min(Math.max(x, 0), size.width), y: Math.min(Math.max(y, 0), size.height) };
  return { ...inside, outside: inside.x !== x || inside.y !== y };
}

/** An action as words: `click at 472, 792`, `type “ls”`. */
export function describePointer(pointer: Pointer): string {
  const isTyped = pointer.kind === "type" || pointer.kind === "key"; // its place is only where the pointer was
  const at = isTyped || pointer.x === null || pointer.y === null ? "" : ` at ${pair(pointer.x, pointer.y)}`;
  const to = pointer.to_x === null || pointer.to_y === null ? "" : ` to ${pair(pointer.to_x, pointer.to_y)}`;
  const from = to ? at.replace(" at ", " from ") : at;
  const text = oneLine(pointer.text, 200);
  const written = text === "" ? "" : ` ${pointer.kind === "type" ? `“${text}”` : text}`;
  return `${pointer.kind}${from}${to}${written}`;
}

function pair(x: number, y: number): string {
  return `${Math.round(x)}, ${Math.round(y)}`;
}

import { useEffect, useRef, useState } from "preact/hooks";
import type { Pointer } from "../api";
import { describePointer, type Shape, type Size, shapesOf } from "./pointers";
import { StepImage } from "./StepImage";

interface ScreenshotProps {
  run: string;
  execution: number;
  image: string;
  pointers: Pointer[];
}

/** A screenshot with the actions drawn on it. */
export function Screenshot({ run, execution, image, pointers }: ScreenshotProps) {
  const [size, setSize] = useState<(Size & { image: string }) | null>(null);
  const box = useRef<HTMLSpanElement>(null);
  const shown = useShownWidth(box);
  const known = size !== null && size.image === image;
  const alt = pointers.length > 0 ? `Screenshot; ${pointers.map(describePointer).join(", ")}` : "Screenshot";
  return (
    <span class="screenshot" ref={box} style={known ? { "--ratio": String(size.width / size.height) } : undefined}>
      <StepImage
        run={run}
        execution={execution}
        name={image}
        alt={alt}
        onSize={(width, height) => setSize({ width, height, image })}
      />
      {known && shown > 0 && <PointerLayer pointers={pointers} size={size} pixel={size.width / shown} />}
    </span>
  );
}

function useShownWidth(box: { current: HTMLElement | null }): number {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (box.current === null || typeof ResizeObserver === "undefined") return;
    const observer = new ResizeObserver((entries) => setWidth(entries[0]?.contentRect.width ?? 0));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  return width;
}

interface PointerLayerProps {
  pointers: Pointer[];
  size: Size;
  /** The size of a pixel of the screen in pixels of the image, so that marks have the same size on every image. */
  pixel: number;
}

/** The actions as shapes over the image, in its coordinates. */
export function PointerLayer({ pointers, size, pixel }: PointerLayerProps) {
  return (
    <svg class="pointer-layer" viewBox={`0 0 ${size.width} ${size.height}`} aria-hidden="true">
      {shapesOf(pointers, size).map((shape, index) => (
        <g key={index} class={shape.outside ? "outside" : undefined}>
          <ShapeView shape={shape} pixel={pixel} size={size} />
        </g>
      ))}
    </svg>
  );
}

function ShapeView({ shape, pixel, size }: { shape: Shape; pixel: number; size: Size }) {
  const { x, y } = shape;
  switch (shape.kind) {
    case "ring":
      return (
        <>
          {Array.from({ length: shape.rings }, (_, ring) => (
            <Doubled key={ring} shape={(name) => <circle class={name} cx={x} cy={y} r={(11 + 6 * ring) * pixel} />} />
          ))}
          <circle class="pointer-dot" cx={x} cy={y} r={2.5 * pixel} />
          {shape.right && <Label x={x + 16 * pixel} y={y} text="right" pixel={pixel} size={size} />}
        </>
      );
    case "cross":
      return <Doubled shape={(name) => <path class={name} d={crossPath(x, y, 9 * pixel)} />} />;
    case "scroll":
      return <Doubled shape={(name) => <path class={name} d={scrollPath(x, y, pixel)} />} />;
    case "arrow":
      return <Doubled shape={(name) => <path class={name} d={arrowPath(shape, 9 * pixel)} />} />;
    case "text":
      return <Label x={x + 6 * pixel} y={y + 18 * pixel} text={shape.text} pixel={pixel} size={size} />;
  }
}

/** A line on a halo, so that it is visible on light and on dark images. */
function Doubled({ shape }: { shape: (name: string) => preact.VNode }) {
  return (
    <>
      {shape("pointer-halo")}
      {shape("pointer-line")}
    </>
  );
}

function Label({ x, y, text, pixel, size }: { x: number; y: number; text: string; pixel: number; size: Size }) {
  if (text === "") return null;
  const width = (text.length * 7.4 + 12) * pixel; // of the monospaced font at 12 pixels
  const height = 20 * pixel;
  const left = Math.max(0, Math.min(x, size.width - width));
  const top = Math.max(0, Math.min(y - height / 2, size.height - height));
  return (
    <>
      <rect class="pointer-label" x={left} y={top} width={width} height={height} rx={4 * pixel} />
      <text class="pointer-text" x={left + 6 * pixel} y={top + 14 * pixel} font-size={12 * pixel}>
        {text}
      </text>
    </>
  );
}

function crossPath(x: number, y: number, r: number): string {
  return `M${x - r} ${y}H${x + r}M${x} ${y - r}V${y + r}`;
}

function scrollPath(x: number, y: number, pixel: number): string {
  const [wide, high, tip] = [6 * pixel, 15 * pixel, 5 * pixel];
  const up = `M${x - wide} ${y - high + wide}L${x} ${y - high}L${x + wide} ${y - high + wide}`;
  const down = `M${x - wide} ${y + high - wide}L${x} ${y + high}L${x + wide} ${y + high - wide}`;
  return `${up}${down}M${x} ${y - tip}V${y + tip}`;
}

/** A line with a head; the head has the direction of the line. */
export function arrowPath(shape: { x: number; y: number; toX: number; toY: number }, head: number): string {
  const angle = Math.atan2(shape.toY - shape.y, shape.toX - shape.x);
  const side = (turn: number) =>
    `L${round(shape.toX - head * Math.cos(angle + turn))} ${round(shape.toY - head * Math.sin(angle + turn))}`;
  const end = `${shape.toX} ${shape.toY}`;
  return `M${shape.x} ${shape.y}L${end}M${end}${side(0.5)}M${end}${side(-0.5)}`;
}

function round(value: number): number {
  return Math.round(value * 100) / 100;
}

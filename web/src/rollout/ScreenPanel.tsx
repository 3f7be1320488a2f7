import { useEffect, useRef, useState } from "preact/hooks";
import type { Frame } from "./frames";
import { describePointer } from "./pointers";
import { Screenshot } from "./Screenshot";
import { StepImage } from "./StepImage";

interface ScreenPanelProps {
  run: string;
  execution: number;
  frames: Frame[];
  /** The position of the frame that is shown. */
  position: number;
  /** Whether it is shown in full size over the page. */
  full: boolean;
  onMove: (position: number) => void;
  onFull: (full: boolean) => void;
}

/** The selected screenshot with what was done on it, and all screenshots as a film strip. */
export function ScreenPanel({ run, execution, frames, position, full, onMove, onFull }: ScreenPanelProps) {
  const frame = frames[position];
  if (frame === undefined) return null;
  const move = (offset: number) => onMove(Math.min(Math.max(position + offset, 0), frames.length - 1));
  return (
    <section class="screen panel" aria-label="Screenshots">
      <button type="button" class="screen-image" onClick={() => onFull(true)} aria-label="Show in full size">
        <Screenshot run={run} execution={execution} image={frame.image} pointers={frame.pointers} />
      </button>
      <div class="screen-caption">
        <Caption frame={frame} position={position} count={frames.length} />
      </div>
      {frames.length > 1 && (
        <>
          <div class="screen-controls">
            <button
              type="button"
              class="icon-button"
              onClick={() => move(-1)}
              disabled={position === 0}
              aria-label="Previous screenshot"
            >
              ◀
            </button>
            <input
              type="range"
              min={0}
              max={frames.length - 1}
              value={position}
              aria-label="Screenshot"
              aria-valuetext={`${position + 1} of ${frames.length}`}
              onInput={(event) => onMove(Number(event.currentTarget.value))}
            />
            <button
              type="button"
              class="icon-button"
              onClick={() => move(1)}
              disabled={position === frames.length - 1}
              aria-label="Next screenshot"
            >
              ▶
            </button>
          </div>
          <Filmstrip run={run} execution={execution} frames={frames} position={position} onMove={onMove} />
        </>
      )}
      {full && (
        <FullSize
          caption={<Caption frame={frame} position={position} count={frames.length} />}
          onClose={() => onFull(false)}
          onStep={move}
        >
          <Screenshot run={run} execution={execution} image={frame.image} pointers={frame.pointers} />
        </FullSize>
      )}
    </section>
  );
}

function Caption({ frame, position, count }: { frame: Frame; position: number; count: number }) {
  return (
    <>
      <span class="soft">
        {position + 1} / {count}
      </span>
      {frame.pointers.map((pointer, index) => (
        <span key={index} class="screen-action">
          {describePointer(pointer)}
        </span>
      ))}
    </>
  );
}

interface FilmstripProps {
  run: string;
  execution: number;
  frames: Frame[];
  position: number;
  onMove: (position: number) => void;
}

/** Frames at either side of the selected one that are in the strip: hundreds of large images would use gigabytes. */
const NEIGHBOURS = 12;

function Filmstrip({ run, execution, frames, position, onMove }: FilmstripProps) {
  const strip = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const current = strip.current?.querySelector<HTMLElement>("[aria-current]");
    if (strip.current && current) {
      strip.current.scrollLeft = current.offsetLeft - (strip.current.clientWidth - current.clientWidth) / 2;
    }
  }, [position, frames.length]);
  const first = Math.max(0, position - NEIGHBOURS);
  return (
    <div class="filmstrip" ref={strip}>
      {frames.slice(first, position + NEIGHBOURS + 1).map((frame, index) => {
        const place = first + index;
        return (
          <button
            type="button"
            key={place}
            class="film"
            tabIndex={place === position ? 0 : -1}
            aria-current={place === position ? "true" : undefined}
            aria-label={`Screenshot ${place + 1}`}
            onClick={() => onMove(place)}
          >
            <StepImage run={run} execution={execution} name={frame.image} alt="" lazy />
            <span class="film-number">{place + 1}</span>
          </button>
        );
      })}
    </div>
  );
}

interface FullSizeProps {
  onClose: () => void;
  onStep: (offset: number) => void;
  caption: preact.ComponentChildren;
  children: preact.ComponentChildren;
}

function FullSize({ onClose, onStep, caption, children }: FullSizeProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [natural, setNatural] = useState(false);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  const onKeyDown = (event: KeyboardEvent) => {
    const offset = { ArrowLeft: -1, ArrowRight: 1, k: -1, j: 1 }[event.key];
    event.stopPropagation();
    if (offset === undefined) return;
    event.preventDefault();
    onStep(offset);
  };
  return (
    <dialog
      ref={dialog}
      class={`full-size${natural ? " natural" : ""}`}
      aria-label="Screenshot in full size"
      onClose={onClose}
      onKeyDown={onKeyDown}
    >
      <div class="full-bar">
        {caption}
        <span class="spring" />
        <button type="button" class="button" onClick={() => setNatural(!natural)} aria-pressed={natural}>
          {natural ? "Fit to the window" : "Actual pixels"}
        </button>
        <button type="button" class="button" onClick={() => dialog.current?.close()}>
          Close
        </button>
      </div>
      <div class="full-content">{children}</div>
    </dialog>
  );
}

import { useState } from "preact/hooks";
import { address } from "../source";
import { cleanText } from "../text";

interface StepImageProps {
  run: string;
  execution: number;
  name: string;
  alt: string;
  lazy?: boolean;
  onSize?: (width: number, height: number) => void;
}

/** An image of an execution, or a message if the file is not an image. */
export function StepImage({ run, execution, name, alt, lazy = false, onSize }: StepImageProps) {
  const [broken, setBroken] = useState("");
  if (broken === name) {
    return (
      <span class="not-image" role="img" aria-label={`${cleanText(name)} cannot be shown`}>
        {cleanText(name)} is not an image that can be shown.
      </span>
    );
  }
  return (
    <img
      src={address(["runs", run, "images", execution, name])}
      alt={alt}
      loading={lazy ? "lazy" : "eager"}
      decoding="async"
      draggable={false}
      onError={() => setBroken(name)}
      onLoad={(event) => onSize?.(event.currentTarget.naturalWidth, event.currentTarget.naturalHeight)}
    />
  );
}

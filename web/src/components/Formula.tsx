import katex, { type KatexOptions } from "katex";
import { createContext } from "preact";
import { useContext, useLayoutEffect, useRef } from "preact/hooks";
import { isBareFormula } from "../text";
import "katex/dist/katex.min.css";

/**
 * Formulas come from models: no links, images, classes or styles of their own (`trust`), and limits for macros and sizes.
 * KaTeX makes elements, never HTML, and sets styles through the object model, which the Content-Security-Policy allows.
 */
const OPTIONS: KatexOptions = {
  trust: false,
  strict: "ignore",
  throwOnError: true,
  maxExpand: 200,
  maxSize: 20,
};

/** Groups within groups that are drawn; browsers need long for the layout of more, and no formula for people has them. */
const DEEPEST = 30;

/** Whether formulas are drawn, or shown as they were written. */
export const FormulasDrawn = createContext(true);

/** A formula of LaTeX, with its delimiters if it has any. One that cannot be read is shown as it was written. */
export function Formula({ source }: { source: string }) {
  const isDrawn = useContext(FormulasDrawn);
  const place = useRef<HTMLElement>(null);
  const { tex, isDisplay } = withoutDelimiters(source);
  useLayoutEffect(() => {
    const element = place.current;
    if (!element) return;
    const drawn = document.createElement("span");
    element.classList.remove("source");
    try {
      if (!isDrawn || isDeep(tex)) throw new Error("not drawn");
      katex.render(tex, drawn, { ...OPTIONS, displayMode: isDisplay });
      element.replaceChildren(...drawn.childNodes);
    } catch {
      element.classList.add("source");
      element.textContent = source; // there is an error in it
    }
  }, [source, isDrawn]);
  return <span class={isDisplay ? "formula display" : "formula"} ref={place} title={source} />;
}

/** Whether the whole of a text is a formula that can be drawn. */
export function isFormula(text: string): boolean {
  if (!isBareFormula(text) || isDeep(text)) return false;
  try {
    katex.renderToString(text, OPTIONS);
    return true;
  } catch {
    return false;
  }
}

function isDeep(tex: string): boolean {
  let depth = 0;
  for (const [mark] of tex.matchAll(/\\(?:left|right|begin|end)\b|\\.|[{}]/g)) {
    if (mark === "{" || mark === "\\left" || mark === "\\begin") depth++;
    else if (mark === "}" || mark === "\\right" || mark === "\\end") depth--;
    if (depth > DEEPEST) return true;
  }
  return false;
}

function withoutDelimiters(source: string): { tex: string; isDisplay: boolean } {
  if (source.startsWith("$$") || source.startsWith("\\[")) return { tex: source.slice(2, -2), isDisplay: true };
  if (source.startsWith("\\(")) return { tex: source.slice(2, -2), isDisplay: false };
  if (source.startsWith("$")) return { tex: source.slice(1, -1).trim(), isDisplay: false };
  return { tex: source, isDisplay: source.startsWith("\\begin{") };
}

import { useMemo } from "preact/hooks";
import { highlight } from "../highlight";
import { cleanText } from "../text";
import { CopyButton } from "./CopyButton";
import "./CodeView.css";

/** Code with colours. */
export function CodeView({ code, language = "" }: { code: string; language?: string }) {
  const parts = useMemo(() => highlight(cleanText(code), language.toLowerCase()), [code, language]);
  return (
    <div class="code-view">
      <CopyButton text={code} />
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: wide code scrolls, also with the keyboard */}
      <pre tabIndex={0}>
        <code>
          {parts.map((part, index) =>
            part.names ? (
              <span key={index} class={part.names}>
                {part.text}
              </span>
            ) : (
              part.text
            ),
          )}
        </code>
      </pre>
    </div>
  );
}

import { Marked, type Token, type Tokens } from "marked";
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { cleanText } from "../text";
import { CodeView } from "./CodeView";
import "./Markdown.css";

/** Longer texts are shown as they are. */
const LONGEST = 100_000;
/** The lexer needs quadratic time for some texts, so it gets parts of about this length, divided at empty lines. */
const PART = 6_000;
const DEEPEST = 24;
/** Beginnings of lines and series of brackets that nest deeply; no text for people has them. */
const NESTED = /^[ \t]*(?:(?:>|[-+*]|\d{1,9}[.)])[ \t]*){16,}|[[(]{32,}|[*_~`]{64,}/m;

const marked = new Marked({ gfm: true, breaks: true });
marked.use({ extensions: [{ name: "math", level: "inline", start: findMath, tokenizer: readMath }] });

/** Formulas stay as they were written: Markdown would take their `_` and `*` for emphasis. */
const MATH =
  /^(?:\$\$[^$]{1,2000}\$\$|\$[^\s$](?:[^$\n]{0,300}[^\s$\\])?\$(?!\d)|\\\([^\n]{1,500}?\\\)|\\\[[\s\S]{1,2000}?\\\])/;

function findMath(source: string): number | undefined {
  const found = source.search(/\$|\\[([]/);
  return found < 0 ? undefined : found;
}

function readMath(source: string): Tokens.Generic | undefined {
  const raw = MATH.exec(source)?.[0];
  return raw === undefined ? undefined : { type: "math", raw };
}

/** Text with Markdown as elements. HTML in it, images and links other than http, https and mailto are shown as text. */
export function Markdown({ text }: { text: string }) {
  const clean = useMemo(() => cleanText(text), [text]);
  const tokens = useMemo(() => tokensOf(clean), [clean]);
  if (tokens === null) return <div class="markdown plain">{clean}</div>;
  return <div class="markdown">{blocks(tokens, 0)}</div>;
}

/** The tokens of a text; null if it should be shown as it is. */
function tokensOf(text: string): Token[] | null {
  if (text.length > LONGEST || NESTED.test(text)) return null;
  try {
    return partsOf(text).flatMap((part) =>
      part.length > 2 * PART ? [{ type: "long", raw: part }] : marked.lexer(part),
    );
  } catch {
    return null;
  }
}

/** Divide a text at empty lines outside of code blocks. */
function partsOf(text: string): string[] {
  if (text.length <= PART) return [text];
  const parts: string[] = [];
  let start = 0;
  let position = 0;
  let fence = "";
  for (const line of text.split("\n")) {
    const mark = /^ {0,3}(```|~~~)/.exec(line)?.[1];
    if (mark !== undefined && (fence === "" || fence === mark)) fence = fence === "" ? mark : "";
    position += line.length + 1;
    if (position - start > PART && line.trim() === "" && fence === "") {
      parts.push(text.slice(start, position));
      start = position;
    }
  }
  parts.push(text.slice(start));
  return parts;
}

function blocks(tokens: Token[], depth: number): ComponentChildren {
  return tokens.map((token, index) => <Block key={index} token={token as Tokens.Generic} depth={depth} />);
}

function Block({ token, depth }: { token: Tokens.Generic; depth: number }) {
  if (depth > DEEPEST) return <div class="plain">{token.raw}</div>;
  switch (token.type) {
    case "space":
      return null;
    case "heading":
      return <MarkdownHeading token={token as Tokens.Heading} depth={depth} />;
    case "paragraph":
      return <p>{inline(token.tokens, depth)}</p>;
    case "text":
      return <>{token.tokens ? inline(token.tokens, depth) : token.text}</>;
    case "code":
      return <CodeView code={token.text} language={languageOf(token.lang)} />;
    case "blockquote":
      return <blockquote>{blocks(token.tokens ?? [], depth + 1)}</blockquote>;
    case "list":
      return <MarkdownList token={token as Tokens.List} depth={depth} />;
    case "table":
      return <MarkdownTable token={token as Tokens.Table} depth={depth} />;
    case "hr":
      return <hr />;
    case "checkbox":
      return <Checkbox checked={token.checked === true} />;
    default:
      return <div class="plain">{token.raw.replace(/\n+$/, "")}</div>; // HTML, definitions of links
  }
}

/** Headings of the page are above those of a text: h1 is the task, h2 its parts, h3 a turn. */
function MarkdownHeading({ token, depth }: { token: Tokens.Heading; depth: number }) {
  const Tag = (["h4", "h5", "h6"] as const)[Math.min(token.depth, 3) - 1] ?? "h6";
  return <Tag class={`md-heading md-h${token.depth}`}>{inline(token.tokens, depth)}</Tag>;
}

function languageOf(info: unknown): string {
  return typeof info === "string" ? (/^[\w+#-]+/.exec(info)?.[0] ?? "") : "";
}

function MarkdownList({ token, depth }: { token: Tokens.List; depth: number }) {
  const items = token.items.map((item, index) => (
    <li key={index} class={item.task ? "task" : undefined}>
      {blocks(item.tokens, depth + 1)}
    </li>
  ));
  return token.ordered ? <ol start={Number(token.start) || 1}>{items}</ol> : <ul>{items}</ul>;
}

function Checkbox({ checked }: { checked: boolean }) {
  return (
    <span class="checkbox" role="img" aria-label={checked ? "done" : "open"}>
      {checked ? "☑ " : "☐ "}
    </span>
  );
}

function MarkdownTable({ token, depth }: { token: Tokens.Table; depth: number }) {
  const side = (index: number) => (token.align[index] === null ? undefined : `to-${token.align[index]}`);
  return (
    <div class="table-scroll">
      <table class="plain-table">
        <thead>
          <tr>
            {token.header.map((cell, index) => (
              <th key={index} class={side(index)}>
                {inline(cell.tokens, depth)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {token.rows.map((row, number) => (
            <tr key={number}>
              {row.map((cell, index) => (
                <td key={index} class={side(index)}>
                  {inline(cell.tokens, depth)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function inline(tokens: Token[] | undefined, depth: number): ComponentChildren {
  return (tokens ?? []).map((token, index) => <Inline key={index} token={token as Tokens.Generic} depth={depth + 1} />);
}

function Inline({ token, depth }: { token: Tokens.Generic; depth: number }) {
  if (depth > DEEPEST) return <>{token.raw}</>;
  switch (token.type) {
    case "strong":
      return <strong>{inline(token.tokens, depth)}</strong>;
    case "em":
      return <em>{inline(token.tokens, depth)}</em>;
    case "del":
      return <del>{inline(token.tokens, depth)}</del>;
    case "codespan":
      return <code class="inline-code">{token.text}</code>;
    case "br":
      return <br />;
    case "escape":
      return <>{token.text}</>;
    case "text":
      return <>{token.tokens ? inline(token.tokens, depth) : token.text}</>;
    case "math":
      return <span class="formula">{token.raw}</span>;
    case "link":
      return <MarkdownLink token={token as Tokens.Link} depth={depth} />;
    case "image":
      return <span class="not-loaded">{`[image${token.text ? ` “${token.text}”` : ""}: ${token.href}]`}</span>;
    case "checkbox":
      return <Checkbox checked={token.checked === true} />;
    default:
      return <>{token.raw}</>; // HTML
  }
}

function MarkdownLink({ token, depth }: { token: Tokens.Link; depth: number }) {
  const target = linkTarget(token.href);
  if (target === null) return <span class="not-loaded">{token.raw}</span>;
  return (
    <a href={target} target="_blank" rel="noopener noreferrer" title={token.href}>
      {inline(token.tokens, depth)}
    </a>
  );
}

/** The address of a link that may be followed; null for all others. Relative ones have no meaning here. */
export function linkTarget(address: string): string | null {
  if (!/^(?:https?:\/\/|mailto:)/i.test(address)) return null;
  try {
    const url = new URL(address);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

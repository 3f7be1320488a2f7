import { Marked, type Token, Tokenizer, type TokenizerExtension, type Tokens } from "marked";
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { cleanText } from "../text";
import { CodeView } from "./CodeView";
import { Formula, FormulasDrawn } from "./Formula";
import "./Markdown.css";

/** Longer texts are shown as they are. */
const LONGEST = 100_000;
/** The lexer needs quadratic time for some texts, so it gets parts of about this length, divided at empty lines. */
const PART = 6_000;
const DEEPEST = 24;
/** Beginnings of lines and series of brackets that nest deeply; no text for people has them. */
const NESTED = /^[ \t]*(?:(?:>|[-+*]|\d{1,9}[.)])[ \t]*){16,}|[[(]{32,}|[*_~`]{64,}/m;

/** Texts with more delimiters show their formulas as they were written: drawing one takes about a millisecond. */
const MOST_DELIMITERS = 1_000;

const DISPLAY = String.raw`\$\$[^$]{1,2000}\$\$|\\\[[\s\S]{1,2000}?\\\]|\\begin\{([a-zA-Z]{1,12}\*?)\}[\s\S]{1,2000}?\\end\{\1\}`;
/** Spaces within the dollars: only a formula has one number or letter, or one of the signs, between them. */
const SPACED = String.raw`\$(?= *(?:-?\d[\d.,]*|[a-zA-Z]) +\$|[^$\n]{0,300}[\\^_=])(?: [^$\n]{1,300}|[^\s$][^$\n]{0,300} )\$(?!\d)`;
/** Braces within the braces, two levels of them. Words and dots in a box are those of a prompt, which stays as it is. */
const BOXED = String.raw`\\boxed\{(?![.… ]*\}|[^{}]*(?<![\\a-zA-Z])[a-zA-Z]{3})(?:[^{}\n]|\{(?:[^{}\n]|\{[^{}\n]{0,300}\}){0,300}\}){1,300}\}`;
const INLINE = String.raw`\$[^\s$](?:[^$\n]{0,300}[^\s$\\])?\$(?!\d)|${SPACED}|\\\([^\n]{1,500}?\\\)|${BOXED}`;
const DELIMITERS = /\$|\\[([]|\\begin\{|\\boxed\{/g;

/** Letters and digits, but not those of languages that write no spaces between words. */
const WORD = String.raw`(?![\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Script=Thai}])[\p{L}\p{N}_]`;
const OPERATOR = "[=+*/^<>~%×÷·]";
/** Marks behind or before these are signs of arithmetic or parts of names, as in `3*4`, `(a+b)*(c+d)*e` and `5~10`. */
const OPERAND_BEFORE = new RegExp(String.raw`^(?:${WORD}|${OPERATOR}|[)\]}])$`, "u");
const OPERAND_AFTER = new RegExp(`^(?:${WORD}|${OPERATOR})`, "u");

const marked = new Marked({ gfm: true, breaks: true });
marked.use({
  tokenizer: {
    emStrong(source, masked, before) {
      return outsideOfWords(source, before, () => Tokenizer.prototype.emStrong.call(this, source, masked, before));
    },
    del(source, masked, before) {
      return outsideOfWords(source, before, () => Tokenizer.prototype.del.call(this, source, masked, before));
    },
  },
  extensions: [
    // A formula of several lines, which Markdown would take for a list or a heading.
    mathExtension("block", new RegExp(`^ {0,3}(?:${DISPLAY})[ \\t]*(?:\\n|$)`), /^ {0,3}(?:\$\$|\\\[|\\begin\{)/m),
    // Formulas within a line: Markdown would take their `_` and `*` for emphasis.
    mathExtension("inline", new RegExp(`^(?:${DISPLAY}|${INLINE})`), /\$|\\[([]|\\begin\{|\\boxed\{/),
  ],
});

/** The token of emphasis that begins here; undefined if one of its marks is within a word, a number or a calculation. */
function outsideOfWords<T extends Token>(source: string, before = "", read: () => T | undefined): T | undefined {
  if (OPERAND_BEFORE.test(before)) return undefined;
  const token = read();
  return token && OPERAND_AFTER.test(source.slice(token.raw.length)) ? undefined : token;
}

function mathExtension(level: "block" | "inline", formula: RegExp, beginning: RegExp): TokenizerExtension {
  return {
    name: `${level}Math`,
    level,
    start: (source) => {
      const found = source.search(beginning);
      return found < 0 ? undefined : found;
    },
    tokenizer: (source) => {
      const raw = formula.exec(source)?.[0];
      return raw === undefined ? undefined : { type: "math", raw };
    },
  };
}

/** Text with Markdown as elements. HTML in it, images and links other than http, https and mailto are shown as text. */
export function Markdown({ text }: { text: string }) {
  const clean = useMemo(() => cleanText(text), [text]);
  const tokens = useMemo(() => tokensOf(clean), [clean]);
  if (tokens === null) return <div class="markdown plain">{clean}</div>;
  return (
    <FormulasDrawn.Provider value={(clean.match(DELIMITERS)?.length ?? 0) <= MOST_DELIMITERS}>
      <div class="markdown">{blocks(tokens, 0)}</div>
    </FormulasDrawn.Provider>
  );
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
    case "math":
      return <Formula source={token.raw.trim()} />;
    case "checkbox":
      return <Checkbox checked={token.checked === true} />;
    default:
      return <div class="plain">{token.raw.replace(/\n+$/, "")}</div>; // HTML, definitions of links
  }
}

/** Headings of the page are above those of a text: h1 is the task, h2 its parts, h3 a turn. */
function MarkdownHeading({ token, depth }: { token: Tokens.Heading; depth: number }) {
  const Tag = (["h4", "h5", "h6"] as const)[Math.min(token.depth, 3) - 1] ?? "h6";
  const marks = /^ {0,3}(#+)/.exec(token.raw)?.[1]; // they stay visible: scorers look for `#### 3`
  return (
    <Tag class={`md-heading md-h${token.depth}`}>
      {marks && <span class="md-marks">{marks} </span>}
      {inline(token.tokens, depth)}
    </Tag>
  );
}

function languageOf(info: unknown): string {
  return typeof info === "string" ? (/^[\w+#-]+/.exec(info)?.[0] ?? "") : "";
}

/** Numbers are shown as they were written: a browser would count on from the first. */
function MarkdownList({ token, depth }: { token: Tokens.List; depth: number }) {
  if (!token.ordered) {
    return (
      <ul>
        {token.items.map((item, index) => (
          <li key={index} class={item.task ? "task" : undefined}>
            {blocks(item.tokens, depth + 1)}
          </li>
        ))}
      </ul>
    );
  }
  return (
    <ol>
      {token.items.map((item, index) => (
        <li key={index}>
          <span class="list-number">{/^\s*(\d+[.)])/.exec(item.raw)?.[1]}</span>
          <div>{blocks(item.tokens, depth + 1)}</div>
        </li>
      ))}
    </ol>
  );
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
      return <Formula source={token.raw.trim()} />;
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

/** Colours code: lowlight's tree, with only what the pages need of it. */
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import shell from "highlight.js/lib/languages/shell";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { createLowlight } from "lowlight";

const lowlight = createLowlight({
  bash,
  c,
  cpp,
  css,
  diff,
  go,
  ini,
  java,
  javascript,
  json,
  python,
  rust,
  shell,
  sql,
  typescript,
  xml,
  yaml,
});

/** A piece of code with the classes of its colour. */
export interface CodePiece {
  text: string;
  names: string;
}

/** Colouring takes longer than linear time for some texts. */
const LONGEST = 30_000;

/** The pieces of a code in order. Code that is too long or in an unknown language is one piece. */
export function highlight(code: string, language: string): CodePiece[] {
  if (code.length > LONGEST || !lowlight.registered(language)) return [{ text: code, names: "" }];
  try {
    return pieces(lowlight.highlight(language, code).children as CodeNode[]);
  } catch {
    return [{ text: code, names: "" }]; // a grammar that fails on this text
  }
}

interface CodeNode {
  type: string;
  value?: string;
  properties?: { className?: unknown };
  children?: CodeNode[];
}

/** Flatten the tree without recursion, because hostile code can be nested deeply; a piece has the innermost name. */
function pieces(nodes: CodeNode[]): CodePiece[] {
  const found: CodePiece[] = [];
  const pending: { node: CodeNode; names: string }[] = nodes.map((node) => ({ node, names: "" })).reverse();
  for (let next = pending.pop(); next !== undefined; next = pending.pop()) {
    const { node, names } = next;
    if (node.type === "text") {
      const last = found.at(-1);
      if (last?.names === names) last.text += node.value ?? "";
      else found.push({ text: node.value ?? "", names });
      continue;
    }
    const own = Array.isArray(node.properties?.className) ? node.properties.className.join(" ") : "";
    const children = node.children ?? [];
    for (let index = children.length - 1; index >= 0; index--) {
      pending.push({ node: children[index] as CodeNode, names: own || names });
    }
  }
  return found;
}

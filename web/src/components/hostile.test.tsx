import { cleanup, fireEvent, render, screen } from "@testing-library/preact";
import { afterEach, describe, expect, it, vi } from "vitest";
import { highlight } from "../highlight";
import { settings } from "../source";
import { ending, isBareCode } from "../text";
import { CodeView } from "./CodeView";
import { JsonView, jsonText } from "./JsonView";
import { linkTarget, Markdown } from "./Markdown";
import { TextView } from "./TextView";

// KaTeX draws nothing in quirks mode, and happy-dom does not say that it is in standards mode.
vi.hoisted(() => Object.defineProperty(document, "compatMode", { value: "CSS1Compat" }));

afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
});

/** Render and return the container; fail if anything in it could run, load or send something. */
function rendered(element: preact.VNode, allowed = "#none"): HTMLElement {
  const { container } = render(element);
  const found = container.querySelectorAll("script, iframe, img, object, embed, form, style, svg, video, audio");
  expect([...found].filter((one) => !one.matches(allowed))).toHaveLength(0);
  for (const one of container.querySelectorAll("*")) {
    for (const { name, value } of one.attributes) {
      expect(name.startsWith("on"), `${one.tagName} ${name}`).toBe(false);
      if (name === "href") expect(value).toMatch(/^(https?:\/\/|mailto:)/);
      else expect(["src", "srcdoc", "action", "formaction"]).not.toContain(name);
    }
  }
  return container as HTMLElement;
}

/** The sources of the formulas that were drawn. */
function sources(container: HTMLElement): (string | null)[] {
  return [...container.querySelectorAll("annotation")].map((one) => one.textContent);
}

describe("hostile text", () => {
  it("shows HTML in Markdown as text", () => {
    const text =
      '<script>alert(1)</script>\n\nA <img src=x onerror="alert(2)"> and <b>bold</b>\n\n<iframe src="//evil"></iframe>';
    const container = rendered(<Markdown text={text} />);
    expect(container.textContent).toContain("<script>alert(1)</script>");
    expect(container.textContent).toContain('<img src=x onerror="alert(2)">');
    expect(container.textContent).toContain("<b>bold</b>");
  });

  it.each([
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    " javascript:alert(1)",
    "java\tscript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "vbscript:x",
    "file:///etc/passwd",
    "//evil.example/x",
    "#/run/other",
    "api/runs",
    "http:/\\evil",
    "https://[",
  ])("does not link to %s", (address) => {
    expect(linkTarget(address)).toBeNull();
    const container = rendered(<Markdown text={`[click](<${address}>) and <${address}>`} />);
    expect(container.textContent).toContain("click");
  });

  it("links to http, https and mailto without a referrer", () => {
    const container = rendered(
      <Markdown text={"[a](https://x.example/?q=1) [b](mailto:a@b.example) http://c.example/"} />,
    );
    const links = [...container.querySelectorAll("a")];
    expect(links.map((link) => link.getAttribute("href"))).toEqual([
      "https://x.example/?q=1",
      "mailto:a@b.example",
      "http://c.example/",
    ]);
    expect(links.every((link) => link.rel === "noopener noreferrer" && link.target === "_blank")).toBe(true);
  });

  it("does not load images of Markdown", () => {
    const container = rendered(
      <Markdown text={"![seen](https://tracker.example/x.png) ![x](data:image/png;base64,AA)"} />,
    );
    expect(container.textContent).toContain("https://tracker.example/x.png");
  });

  it("removes terminal codes and shows control characters and directions as symbols", () => {
    const text = "\u001b[31mred\u001b[0m \u001b]8;;http://evil\u0007link\u001b]8;;\u0007 a\u0000b \u202egnp.exe";
    for (const element of [
      <Markdown key="m" text={text} />,
      <TextView key="t" text={text} />,
      <CodeView key="c" code={text} />,
    ]) {
      const shown = rendered(element).textContent ?? "";
      expect(shown).toContain("red link a␀b ‹U+202E›gnp.exe");
      expect(shown).not.toContain("\u001b");
      cleanup();
    }
  });

  it.each([
    ["brackets", "[".repeat(10_000)],
    ["links", "[a](".repeat(10_000)],
    ["images", "![".repeat(10_000)],
    ["quotes", ">".repeat(10_000)],
    ["spaced quotes", "> ".repeat(10_000)],
    [
      "lists",
      Array.from({ length: 2_000 }, (_, depth) => `${" ".repeat(depth * 2)}- a`)
        .join("\n")
        .slice(0, 60_000),
    ],
    ["emphasis", "*a **b ".repeat(8_000)],
    ["underscores", "_".repeat(50_000)],
    ["mixed marks", "*_".repeat(25_000)],
    ["backticks", "` ``".repeat(12_000)],
    ["tables", `|${"a|".repeat(5_000)}\n|${"-|".repeat(5_000)}\n`],
    ["tags", "<a ".repeat(15_000)],
    ["comments", "<!-- ".repeat(10_000)],
    ["dollars", "$a ".repeat(15_000)],
    ["formulas", "\\[".repeat(20_000)],
    ["boxes", "\\boxed{".repeat(10_000)],
    ["nested boxes", `\\boxed{${"{{a}}".repeat(10_000)}`],
    ["spaced dollars", "$ a = ".repeat(10_000)],
    ["definitions", "[a]: <b ".repeat(7_000)],
    ["e-mail", `${"a".repeat(30_000)}@`],
    ["addresses", "http://a.".repeat(6_000)],
    ["spaces", `a${" ".repeat(50_000)}b`],
    ["line breaks", "\n".repeat(50_000)],
    ["entities", "&#x".repeat(15_000)],
  ])("renders nested or repeated %s in less than a second", (_, text) => {
    const began = performance.now();
    const container = rendered(<Markdown text={text} />);
    expect(performance.now() - began).toBeLessThan(1000);
    expect(container.childElementCount).toBe(1);
  });

  it.each([
    "\\href{javascript:alert(1)}{x}",
    "\\url{https://evil.example}",
    "\\includegraphics{https://evil.example/x.png}",
    "\\htmlId{root}{x}",
    "\\htmlClass{page}{x}",
    "\\htmlStyle{position:fixed}{x}",
    "\\htmlData{a=b}{x}",
    "\\text{<img src=x onerror=alert(1)>}",
    "\\def\\a{\\a\\a}\\a",
    "\\edef\\a{xxxxxxxxxx}\\edef\\a{\\a\\a\\a\\a\\a\\a}\\edef\\a{\\a\\a\\a\\a\\a\\a}\\edef\\a{\\a\\a\\a\\a\\a\\a}\\edef\\a{\\a\\a\\a\\a}\\a",
    "{".repeat(900) + "}".repeat(900),
    "\\sqrt{".repeat(29) + "}".repeat(29),
    "\\sqrt{".repeat(300) + "}".repeat(300),
    "x^{".repeat(600) + "}".repeat(600),
    "\\left(".repeat(300),
  ])("draws nothing of the formula %s that runs, loads or takes long", (formula) => {
    const began = performance.now();
    const container = rendered(<Markdown text={`$$${formula}$$`} />, "svg, path, line");
    expect(performance.now() - began).toBeLessThan(1500);
    expect(container.querySelectorAll("a, [id], .page, [data-a]")).toHaveLength(0);
    expect([...container.querySelectorAll("[style]")].filter((one) => /fixed/.test(one.outerHTML))).toHaveLength(0);
  });

  it("limits sizes in formulas, and draws many formulas as text", () => {
    const container = rendered(<Markdown text={"$\\rule{9999em}{9999em}$"} />);
    const styles = [...container.querySelectorAll("[style]")].map((one) => one.getAttribute("style"));
    expect(styles.join()).toContain("20em");
    expect(styles.join()).not.toContain("9999em");
    cleanup();
    const began = performance.now();
    expect(rendered(<Markdown text={"$x$ ".repeat(10_000)} />).querySelector(".katex")).toBeNull();
    expect(performance.now() - began).toBeLessThan(2000);
  });

  it.each(["javascript", "python", "bash", "xml", "json", "yaml", "sql", "cpp", "unknown"])(
    "colours deeply nested %s in less than two seconds",
    (language) => {
      for (const code of ["`${".repeat(5_000), "{".repeat(10_000), "<a>".repeat(3_000), 'f"{'.repeat(5_000)]) {
        const began = performance.now();
        const pieces = highlight(code, language);
        expect(performance.now() - began).toBeLessThan(2000);
        expect(pieces.map((piece) => piece.text).join("")).toBe(code);
      }
      const code = "`${<a>{".repeat(100);
      expect(rendered(<CodeView code={code} language={language} />).querySelector("code")?.textContent).toBe(code);
    },
  );

  it("shows JSON that is nested 10,000 times", () => {
    const text = "[".repeat(10_000) + "]".repeat(10_000);
    expect(rendered(<TextView text={text} />).textContent).toContain("1 item");
    cleanup();
    const value = JSON.parse(text) as unknown;
    expect(rendered(<JsonView value={value} open={3} />).querySelectorAll("button")).toHaveLength(4);
    expect(jsonText(value)).not.toBe("");
  });

  it("shows halves of characters as replacement characters", () => {
    const text = "a \ud83d b \udc00 c";
    expect(rendered(<Markdown text={text} />).textContent).toContain("a \ufffd b \ufffd c");
    cleanup();
    expect(rendered(<JsonView value={{ [text]: text }} />).textContent).toContain("a \ufffd b \ufffd c");
  });

  it("shows keys of JSON that are names of methods", () => {
    const value = JSON.parse('{"__proto__": {"constructor": 1}, "toString": "<b>"}') as unknown;
    expect(rendered(<JsonView value={value} open={5} />).textContent).toContain("__proto__");
  });
});

describe("long text", () => {
  it("shows the beginning and, on request, all of it", () => {
    const text = "word ".repeat(4_000);
    const container = rendered(<TextView text={text} format="plain" />);
    expect(container.textContent?.length).toBeLessThan(5_000);
    fireEvent.click(screen.getByRole("button", { name: "Show all 20,000 characters" }));
    expect(container.querySelector("pre")?.textContent).toBe(text);
    fireEvent.click(screen.getByRole("button", { name: "Show less" }));
    expect(container.textContent?.length).toBeLessThan(5_000);
  });

  it("shows the end of a long answer below the button for all of it", () => {
    const text = `${"A line.\n".repeat(50)}#### 42\n`;
    const container = rendered(<TextView text={text} format="markdown" limit={1500} lines={4} part="end" />);
    expect(container.querySelector(".text-view")?.firstElementChild?.textContent).toBe("Show all 408 characters");
    expect(container.querySelector(".markdown")?.textContent).toBe("A line.A line.A line.#### 42");
    fireEvent.click(screen.getByRole("button", { name: "Show all 408 characters" }));
    expect(container.querySelectorAll("br").length).toBeGreaterThan(40);
  });

  it("cuts at lines, and within a line or a code block", () => {
    expect(ending("a\nb\nc", 100, 2)).toBe("b\nc");
    expect(ending("a\nb", 100, 5)).toBe("a\nb");
    expect(ending("aaaa\nbbbb\ncccc", 7, 9)).toBe("cccc");
    expect(ending("abcdef", 3, 9)).toBe("def");
    expect(ending("```python\na = 1\nb = 2\n```", 100, 2)).toBe("```python\nb = 2\n```");
  });

  it("loads 10 MB when they are asked for and shows them in parts", async () => {
    const all = "<script>x</script> 0123456789\n".repeat(350_000);
    const requests: string[] = [];
    vi.stubGlobal("fetch", async (address: string) => {
      requests.push(address);
      return new Response(all);
    });
    const whole = { run: "a b", execution: 7, step: 3 };
    const container = rendered(
      <TextView text={all.slice(0, 100_000)} length={all.length} whole={whole} format="plain" />,
    );
    expect(requests).toEqual([]);
    const began = performance.now();
    fireEvent.click(screen.getByRole("button", { name: /^Show all 10,500,000 characters/ }));
    await vi.waitFor(() => expect(container.querySelectorAll("pre.part").length).toBeGreaterThan(400), {
      timeout: 8000,
    });
    expect(performance.now() - began).toBeLessThan(8000);
    expect(requests).toEqual(["api/runs/a%20b/executions/7/text/3"]);
    const parts = [...container.querySelectorAll("pre.part")].map((part) => part.textContent ?? "");
    expect(parts.join("") === all).toBe(true);
  });

  it("loads the file of an export", async () => {
    const requests: string[] = [];
    vi.stubGlobal("fetch", async (address: string) => {
      requests.push(address);
      return new Response("", { status: 404, statusText: "Not Found" });
    });
    settings.static = true;
    render(<TextView text="ab" length={5} whole={{ run: "r", execution: 1, step: 2 }} />);
    fireEvent.click(screen.getByRole("button", { name: "Show all 5 characters" }));
    expect((await screen.findByRole("alert")).textContent).toContain("404 Not Found");
    expect(requests).toEqual(["data/runs/r/executions/1/text/2.txt"]);
    settings.static = false;
  });
});

describe("formats", () => {
  it("finds code outside of code blocks", () => {
    expect(isBareCode("Complete it.\n\ndef f(x):\n    return 1")).toBe(true);
    expect(isBareCode("```python\ndef f(x):\n    return 1\n```")).toBe(false);
    expect(isBareCode("1. import duties\n   rise\n2. other")).toBe(false);
  });

  it("shows tables of Markdown and of tabs as tables", () => {
    const container = rendered(<TextView text={"| a | b |\n|---|--:|\n| 1 | 2 |"} />);
    expect([...container.querySelectorAll("td")].map((cell) => cell.textContent)).toEqual(["1", "2"]);
    cleanup();
    const rows = rendered(<TextView text={"role\tname\nbutton\tOK\n"} />);
    expect([...rows.querySelectorAll("td")].map((cell) => cell.textContent)).toEqual(["button", "OK"]);
  });

  it("colours code of known languages", () => {
    const container = rendered(<Markdown text={"```python\ndef f(x):\n    return 1\n```"} />);
    expect(container.querySelector(".hljs-keyword")?.textContent).toBe("def");
  });

  it("draws formulas and leaves prices as they are", () => {
    const container = rendered(<Markdown text={"Let $a_1 * b_2 * c_3$ be \\(x_1\\), for $5 and $6."} />);
    expect(sources(container)).toEqual(["a_1 * b_2 * c_3", "x_1"]);
    expect(container.textContent).toContain(", for $5 and $6.");
    expect(container.querySelector("em")).toBeNull();
  });

  it("draws formulas with spaces within their dollars, and boxes without dollars", () => {
    const text =
      "So $ 31 \\times 6 = 186 $, $ 4 $ and $x_1 $: \\boxed{190}, \\boxed{\\frac{1}{2}}.\n\n" +
      "It costs $5 and $6, or $ 7 and $ 8, or 5 $ and 6 $, $5 + $6 = $11.\n\n" +
      "Write \\boxed{...} or \\boxed{your answer}.";
    const container = rendered(<Markdown text={text} />);
    const boxes = ["\\boxed{190}", "\\boxed{\\frac{1}{2}}"];
    expect(sources(container)).toEqual(["31 \\times 6 = 186", "4", "x_1", ...boxes]);
    expect(container.textContent).toContain("Write \\boxed{...} or \\boxed{your answer}.");
    expect(container.textContent).toContain("It costs $5 and $6, or $ 7 and $ 8, or 5 $ and 6 $, $5 + $6 = $11.");
  });

  it("draws formulas of several lines, which Markdown would take for lists", () => {
    const text =
      "So\n\\[\nx\n+ 1\n- 2\n\\]\nand\n\\begin{align*}\na &= b\\\\\n&= c\n\\end{align*}\n\nend $$\\frac{1}{2}$$";
    const container = rendered(<Markdown text={text} />);
    expect(container.querySelectorAll(".formula.display .katex")).toHaveLength(3);
    expect(container.querySelector("li")).toBeNull();
    expect(sources(container)[2]).toBe("\\frac{1}{2}");
  });

  it("shows formulas that it cannot read as they were written", () => {
    const container = rendered(<Markdown text={"$\\unheardof{1}$ and $\\frac{1$"} />);
    expect(container.textContent).toBe("$\\unheardof{1}$ and $\\frac{1$");
  });

  it.each([
    "611*8=$<<611*8=4888>>4888",
    "First 3*4=12, then 5*6=30.",
    "x_1*x_2 = 2*3, and (a+b)*(c+d)*e",
    "2**3 + 4**5 and n*_k",
    "5~10 to 20~30, snake_case_name",
  ])("leaves the signs of %s as they are", (text) => {
    const container = rendered(<Markdown text={text} />);
    expect(container.textContent).toBe(text);
    expect(container.querySelector("em, strong, del")).toBeNull();
  });

  it("draws emphasis beside spaces, punctuation and Chinese text", () => {
    const container = rendered(<Markdown text={"**Total:** *five* (_six_), ~~seven~~. 答案是**四**个"} />);
    expect([...container.querySelectorAll("em, strong, del")].map((one) => one.textContent)).toEqual([
      "Total:",
      "five",
      "six",
      "seven",
      "四",
    ]);
  });

  it("leaves the numbers of lists as they are", () => {
    const container = rendered(<Markdown text={"2024.\n1. two\n3) three\n\n07. x"} />);
    const numbers = [...container.querySelectorAll(".list-number")].map((one) => one.textContent);
    expect(numbers).toEqual(["2024.", "1.", "3)", "07."]);
    expect(container.querySelector("ol[start]")).toBeNull();
  });

  it("keeps the marks of headings, which scorers look for", () => {
    expect(rendered(<Markdown text={"So\n\n#### 72"} />).querySelector("h6")?.textContent).toBe("#### 72");
    cleanup();
    expect(rendered(<Markdown text={"## A `b`"} />).querySelector("h5")?.textContent).toBe("## A b");
  });
});

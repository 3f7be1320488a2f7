import { cleanup, fireEvent, render, screen, within } from "@testing-library/preact";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { ExecutionDetail, NewNote, TranscriptStep } from "../api";
import { ResultPanel } from "../rollout/ResultPanel";
import { settings } from "../source";
import { step as sampleStep } from "../steps.test-data";
import { RolloutPage } from "./RolloutPage";

// KaTeX draws nothing in quirks mode, and happy-dom does not say that it is in standards mode.
vi.hoisted(() => Object.defineProperty(document, "compatMode", { value: "CSS1Compat" }));

function step(index: number, kind: string, turn: number, given: Partial<TranscriptStep> = {}): TranscriptStep {
  return sampleStep(index, kind, given.text ?? "", { turn, at: index, seconds: 1, raw: kind === "model", ...given });
}

const STEPS = [
  step(0, "user", 0, { text: "The question", images: ["a.png"] }),
  step(1, "model", 1, {
    reasoning: "secret thoughts",
    calls: [{ id: "c", name: "python", arguments: '{"code": "print(1)"}' }],
    seen: "a.png",
    pointers: [{ kind: "click", x: 3, y: 4, to_x: null, to_y: null, text: "" }],
  }),
  step(2, "tool", 1, { call: "c", name: "python", text: "<script>alert(1)</script>", error: true, images: ["b.png"] }),
  step(3, "model", 2, { text: "The **answer**" }),
];

const REF = { task: "t 1", status: "completed", final: true, ended: 5, score: 0, kind: "" };
const DETAIL: ExecutionDetail = {
  run: "r",
  number: 7,
  task: "t 1",
  attempt: 1,
  status: "failed",
  final: true,
  score: 0,
  scores: { exact: 0 },
  question: "The question",
  reference: "42",
  answer: "41",
  ending: "",
  party: "endpoint",
  kind: "endpoint",
  error: 'refused\nTraceback (most recent call last):\n  File "x"\nOSError: refused',
  turns: 2,
  tool_calls: 1,
  prompt_tokens: 10,
  completion_tokens: 5,
  seconds: 4,
  waited: 1,
  started: 1,
  ended: 5,
  worker: "host:1",
  machine: "m1",
  activity: [["generating", 4]],
  steps: STEPS,
  tools: [],
  files: ["video.mp4"],
  executions: [
    { ...REF, number: 6, attempt: 1, final: false },
    { ...REF, number: 7, attempt: 1 },
  ],
  sequences: [],
  attempts: [
    { ...REF, number: 7, attempt: 1 },
    { ...REF, number: 8, attempt: 2, score: 1 },
  ],
  notes: [{ number: 1, step: 3, text: "an <b>old</b> note", at: 1 }],
};

const names = ["t 0", "t 1", "t 2", "t 3"];
const zeros = names.map(() => 0);
const empty = names.map(() => "");
const ROWS = {
  next: null,
  last: 9,
  position: [0, 1, 2, 3],
  task: names,
  attempt: names.map(() => 1),
  question: empty,
  reference: empty,
  number: [5, 7, 8, 9],
  status: ["completed", "failed", "completed", "failed"],
  score: zeros,
  ending: empty,
  kind: empty,
  error: empty,
  answer: empty,
  turns: zeros,
  tool_calls: zeros,
  tokens: zeros,
  seconds: zeros,
  waited: zeros,
  started: zeros,
  ended: zeros,
  worker: empty,
  machine: empty,
  executions: zeros,
};

let sent: NewNote[] = [];
let refuses = false;

beforeEach(() => {
  sent = [];
  refuses = false;
  vi.stubGlobal("fetch", async (address: string, options?: RequestInit) => {
    if (address.includes("rollouts")) return Response.json(ROWS);
    if (address.includes("/raw/")) return Response.json({ request: { model: "demo" }, response: { id: "reply-1" } });
    if (address.endsWith("executions/7") || address.endsWith("executions/7.json")) return Response.json(DETAIL);
    if (address.endsWith("notes") && !refuses) {
      const note = JSON.parse(String(options?.body)) as NewNote;
      sent.push(note);
      return Response.json({ number: note.number ?? 2, step: note.step, text: note.text, at: 2 });
    }
    return Response.json({ error: "it is not allowed" }, { status: 403 });
  });
  HTMLDialogElement.prototype.showModal ??= function open(this: HTMLDialogElement) {
    this.open = true;
  };
});

afterEach(() => {
  cleanup();
  settings.static = false;
  vi.unstubAllGlobals();
});

async function openPage(query = ""): Promise<HTMLElement> {
  window.location.hash = `#/run/r/rollout/t%201/1${query}`;
  const { container } = render(<RolloutPage run="r" task="t 1" attempt={1} />);
  await screen.findByRole("heading", { level: 1, name: "t 1" });
  return container as HTMLElement;
}

function press(key: string): void {
  fireEvent.keyDown(document.body, { key });
}

const hash = () => decodeURIComponent(window.location.hash.replaceAll("+", " "));

describe("the page of a rollout", () => {
  it("shows turns with headings, calls with results, and folded reasoning", async () => {
    const page = await openPage();
    expect(screen.getAllByRole("heading", { level: 3 }).map((title) => title.textContent)).toEqual([
      "Start · 1.0 s",
      "Turn 1 · 2.0 s",
      "Turn 2 · 1.0 s",
    ]);
    const call = page.querySelector("#step-2") as HTMLElement;
    expect(call.closest("#step-1")).not.toBeNull();
    expect(call.textContent).toContain("<script>alert(1)</script>");
    expect(page.querySelector("script")).toBeNull();
    expect(page.querySelector("details.reasoning")?.hasAttribute("open")).toBe(false);
    expect(page.querySelector("#step-3 strong")?.textContent).toBe("answer");
  });

  it("shows the error with who caused it, and the answer beside the reference", async () => {
    await openPage();
    const error = screen.getByRole("region", { name: "Error" });
    expect(within(error).getByRole("heading").textContent).toContain("caused by: endpoint");
    expect(error.querySelector("details")?.open).toBe(false);
    const answer = screen.getByRole("region", { name: "Answer" });
    expect(
      within(answer)
        .getAllByRole("heading")
        .map((title) => title.textContent),
    ).toEqual(["Reference", "Answer"]);
    expect(screen.getByRole("link", { name: "video.mp4" }).getAttribute("href")).toBe("api/runs/r/images/7/video.mp4");
  });

  it("says beside the verdict that an answer was cut, and draws the formulas of references", () => {
    const given = { status: "completed", ending: "answer cut", reference: "\\frac{1}{3}\n1/3", error: "" };
    const { container } = render(<ResultPanel detail={{ ...DETAIL, ...given }} />);
    const titles = screen.getAllByRole("heading").map((title) => title.textContent);
    expect(titles).toEqual(["Reference", "Answerwrong· answer cut"]);
    expect(container.querySelector("annotation")?.textContent).toBe("\\frac{1}{3}");
    expect(container.querySelector(".answer")?.textContent).toContain("1/3");
  });

  it.each(["25\\%", "\\{-2,2\\}", "x^2+2x+1", "\\$18.90", "10^{-3}", "\\frac{1}{2}"])(
    "draws the reference %s",
    (reference) => {
      const { container } = render(<ResultPanel detail={{ ...DETAIL, reference }} />);
      expect(container.querySelector(".answer annotation")?.textContent).toBe(reference);
    },
  );

  it.each(["\\frac{1", "C:\\new", "a_1", "2^3", "read the \\% sign"])("leaves %s as it is", (reference) => {
    const { container } = render(<ResultPanel detail={{ ...DETAIL, reference }} />);
    expect(container.querySelector(".answer annotation")).toBeNull();
  });

  it("draws references as it draws answers, and leaves their signs as they are", () => {
    const text = "2*3*4=$<<2*3*4=24>>24";
    const { container, rerender } = render(<ResultPanel detail={{ ...DETAIL, reference: text, answer: text }} />);
    const [reference, answer] = [...container.querySelectorAll(".answer")].map((card) => card.lastElementChild);
    expect(reference?.textContent).toBe(text);
    expect(reference?.outerHTML).toBe(answer?.outerHTML);
    for (const plain of ["a*b*c or C:\\new", "Oslo\nBergen"]) {
      rerender(<ResultPanel detail={{ ...DETAIL, reference: plain }} />);
      expect(container.querySelector(".answer")?.textContent).toBe(`Reference${plain.replace("\n", "")}`);
      expect(container.querySelector(".answer pre")).toBeNull();
    }
    rerender(<ResultPanel detail={{ ...DETAIL, reference: "def f(x):\n    return x * 2" }} />);
    expect(container.querySelector(".answer pre")?.textContent).toBe("def f(x):\n    return x * 2");
    rerender(<ResultPanel detail={{ ...DETAIL, reference: "So \\boxed{190}." }} />);
    expect(container.querySelector(".answer annotation")?.textContent).toBe("\\boxed{190}");
  });

  it("links to executions and attempts", async () => {
    await openPage("?q=x&step=1");
    const executions = screen.getByRole("navigation", { name: "Executions" });
    expect(
      within(executions)
        .getAllByRole("link")
        .map((link) => link.getAttribute("href")),
    ).toEqual(["#/run/r/rollout/t%201/1?q=x&execution=6", "#/run/r/rollout/t%201/1?q=x&execution=7"]);
    const attempts = screen.getByRole("navigation", { name: "Attempts" });
    expect(within(attempts).getAllByRole("link")[1]?.getAttribute("href")).toBe(
      "#/run/r/rollout/t%201/2?q=x&execution=8",
    );
  });

  it("has filters and the selected step in the address", async () => {
    const page = await openPage("?show=errors");
    expect(page.querySelectorAll(".step")).toHaveLength(1);
    fireEvent.click(screen.getByRole("button", { name: /^Images/ }));
    expect(hash()).toContain("show=errors,images");
    await vi.waitFor(() => expect(page.querySelectorAll(".step")).toHaveLength(2));
    fireEvent.click(within(screen.getByRole("navigation", { name: "Turns" })).getAllByRole("button")[1] as HTMLElement);
    expect(hash()).toContain("step=1");
    await vi.waitFor(() => expect(page.querySelector("#step-1")?.getAttribute("aria-current")).toBe("step"));
  });

  it("moves with keys", async () => {
    const page = await openPage();
    for (const [key, step] of [
      ["j", 0],
      ["j", 1],
      ["ArrowDown", 3],
      ["k", 1],
      ["e", 2],
    ] as const) {
      press(key);
      expect(window.location.hash, key).toContain(`step=${step}`);
      await vi.waitFor(() => expect(page.querySelector(`#step-${step}.selected`)).not.toBeNull());
    }
  });

  it("moves to the next and the previous failure", async () => {
    await openPage("?sort=task");
    press("f");
    expect(window.location.hash).toBe("#/run/r/rollout/t%203/1?sort=task");
  });

  it("moves to the next rollout of the filtered list", async () => {
    await openPage("?q=t&step=1&show=tools");
    press("n");
    expect(window.location.hash).toBe("#/run/r/rollout/t%202/1?q=t&show=tools");
  });

  it("does not take keys from a text that is entered", async () => {
    await openPage();
    fireEvent.click(screen.getByRole("button", { name: "Note on step 3" }));
    fireEvent.keyDown(screen.getByRole("textbox"), { key: "j" });
    expect(window.location.hash).not.toContain("step");
  });

  it("shows the screenshot of the selected step with its position", async () => {
    await openPage("?step=2");
    const screenshots = screen.getByRole("region", { name: "Screenshots" });
    expect(within(screenshots).getByRole("slider").getAttribute("aria-valuetext")).toBe("2 of 2");
    fireEvent.input(within(screenshots).getByRole("slider"), { target: { value: "0" } });
    expect(hash()).toContain("step=1");
    expect(await within(screenshots).findByText("click at 3, 4")).toBeTruthy();
  });

  it("says that a file is not an image", async () => {
    await openPage("?step=1");
    const screenshots = screen.getByRole("region", { name: "Screenshots" });
    fireEvent.error(within(screenshots).getByRole("img", { name: /click at 3, 4/ }));
    expect(await within(screenshots).findByText("a.png is not an image that can be shown.")).toBeTruthy();
  });

  it("loads request and response when they are asked for", async () => {
    await openPage();
    fireEvent.click(screen.getByRole("button", { name: "Raw request and response of step 3" }));
    expect(hash()).toContain("raw=3");
    expect(await screen.findByText('"reply-1"')).toBeTruthy();
    fireEvent.click(screen.getByRole("button", { name: "Request" }));
    expect(await screen.findByText('"demo"')).toBeTruthy();
  });

  it("shows the times of the steps", async () => {
    await openPage("?view=timing");
    const timing = screen.getByRole("region", { name: "Timing" });
    fireEvent.click(within(timing).getAllByRole("button")[2] as HTMLElement);
    expect(hash()).toContain("step=2");
  });
});

describe("notes", () => {
  it("are added, changed and removed", async () => {
    const page = await openPage();
    expect(page.querySelector("#step-3 .note-text")?.textContent).toBe("an <b>old</b> note");
    fireEvent.click(screen.getByRole("button", { name: "Note on step 0" }));
    fireEvent.input(screen.getByRole("textbox"), { target: { value: "new \ud800" } });
    fireEvent.click(screen.getByRole("button", { name: "Save" }));
    await vi.waitFor(() => expect(page.querySelector("#step-0 .note-text")?.textContent).toBe("new \ufffd"));
    expect(screen.queryByRole("textbox")).toBeNull();
    expect(within(screen.getByRole("navigation", { name: "Turns" })).getAllByLabelText("has a note")).toHaveLength(2);

    fireEvent.click(screen.getAllByRole("button", { name: "Edit the note" })[1] as HTMLElement);
    fireEvent.input(screen.getByRole("textbox"), { target: { value: "changed" } });
    fireEvent.click(screen.getByRole("button", { name: "Save" }));
    await vi.waitFor(() => expect(page.querySelector("#step-3 .note-text")?.textContent).toBe("changed"));

    fireEvent.click(screen.getAllByRole("button", { name: "Remove the note" })[0] as HTMLElement);
    await vi.waitFor(() => expect(page.querySelector("#step-0 .note-text")).toBeNull());
    expect(sent).toEqual([
      { execution: 7, step: 0, text: "new \ufffd", number: null },
      { execution: 7, step: 3, text: "changed", number: 1 },
      { execution: 7, step: 0, text: "", number: 2 },
    ]);
  });

  it("keep their text if they cannot be saved", async () => {
    await openPage();
    refuses = true;
    fireEvent.click(screen.getByRole("button", { name: "Note on step 0" }));
    fireEvent.input(screen.getByRole("textbox"), { target: { value: "new" } });
    fireEvent.click(screen.getByRole("button", { name: "Save" }));
    expect((await screen.findByRole("alert")).textContent).toBe("Not saved: it is not allowed");
    expect((screen.getByRole("textbox") as HTMLTextAreaElement).value).toBe("new");
  });

  it("cannot be written in an export", async () => {
    settings.static = true;
    const page = await openPage();
    expect(page.querySelector("#step-3 .note-text")?.textContent).toBe("an <b>old</b> note");
    expect(screen.queryByRole("button", { name: /^Note on|the note$/ })).toBeNull();
  });
});

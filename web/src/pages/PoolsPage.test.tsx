import { cleanup, fireEvent, render, screen, waitFor, within } from "@testing-library/preact";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { PoolDetail, PoolMachine, PoolRow } from "../api";
import { PoolsPage } from "./PoolsPage";

const ID = "127.0.0.1:7000";
const BASE = "api/pools/127.0.0.1%3A7000";
const HOSTILE = '\u001b[31m\u001b]0;title\u0007<img src=x onerror="alert(1)"><script>alert(2)</script>';

function row(others: Partial<PoolRow> = {}): PoolRow {
  const states = { leased: 1, quarantined: 1 };
  return { id: ID, address: ID, run: "first", provider: "process", states, waiting: 3, problem: "", ...others };
}

function machine(name: string, others: Partial<PoolMachine> = {}): PoolMachine {
  const counts = { leases: 4, resets: 3, failures: 0 };
  const nothing = { holder: "", lease_age: null, detail: "", screenshot: false, log: true };
  return { name, state: "free", since: 5, ...counts, ...nothing, ...others };
}

const LEASED = machine("m0", { state: "leased", holder: "host:7 a task#2", lease_age: 65, screenshot: true });
const FAILED = machine("m1", { state: "quarantined", failures: 1, detail: `stopped answering: ${HOSTILE}` });

function detail(others: Partial<PoolDetail> = {}): PoolDetail {
  const events: PoolDetail["events"] = [[1_800_000_000, "m0", "leased", "host:7 a task#2", ""]];
  return { row: row(), machines: [LEASED, FAILED], events, ...others };
}

let answers: Record<string, () => Response>;
let sent: [string, string][];

beforeEach(() => {
  sent = [];
  answers = { [BASE]: () => Response.json(detail()) };
  vi.stubGlobal("fetch", async (address: string, options: RequestInit = {}) => {
    if (options.method === "POST") sent.push([address, String(options.body)]);
    return answers[address]?.() ?? Response.json({ error: `no ${address}` }, { status: 404 });
  });
  vi.stubGlobal("URL", Object.assign(URL, { createObjectURL: () => "blob:image", revokeObjectURL: () => {} }));
  window.location.hash = `#/pools/${encodeURIComponent(ID)}`;
});
afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
});

test("pools are listed with their machines; one that does not answer with its problem", async () => {
  const dead = row({ id: "h:1", address: "h:1", run: "", states: {}, problem: "no pool answers at h:1" });
  answers["api/pools"] = () => Response.json({ pools: [row(), dead] });
  render(<PoolsPage />);
  expect((await screen.findByText(ID)).closest("a")?.getAttribute("href")).toBe("#/pools/127.0.0.1%3A7000");
  expect(screen.getByText("first").getAttribute("href")).toBe("#/run/first");
  expect(screen.getByText("leased")).toBeTruthy();
  expect(screen.getByText("no pool answers at h:1")).toBeTruthy();
});

test("without pools, the page says how to name one", async () => {
  answers["api/pools"] = () => Response.json({ pools: [] });
  render(<PoolsPage />);
  expect(await screen.findByText(/--pool-address/)).toBeTruthy();
});

test("machines show state, holder and lease; the holder links to its rollout", async () => {
  render(<PoolsPage id={ID} />);
  const grid = await screen.findByRole("grid", { name: "Machines" });
  const link = within(grid).getByText("a task#2");
  expect(link.getAttribute("href")).toBe("#/run/first/rollout/a%20task/2");
  expect(within(grid).getByText("1:05")).toBeTruthy();
  expect(within(grid).getByText("quarantined")).toBeTruthy();
});

test("text of a machine is text, without terminal codes", async () => {
  answers[`${BASE}/machines/m1/log`] = () => new Response(HOSTILE);
  window.location.hash += "?machine=m1";
  const { container } = render(<PoolsPage id={ID} />);
  const panel = await screen.findByRole("complementary", { name: "Machine m1" });
  const log = await within(panel).findByText('<img src=x onerror="alert(1)"><script>alert(2)</script>');
  expect(log.tagName).toBe("PRE");
  expect(container.querySelector("script, img[src=x]")).toBeNull();
  expect(panel.textContent).not.toContain("\u001b");
});

test("the panel of a machine shows its screen, and Escape closes it", async () => {
  answers[`${BASE}/machines/m0/screenshot`] = () => new Response(new Blob(["png"], { type: "image/png" }));
  answers[`${BASE}/machines/m0/log`] = () => new Response("booted");
  window.location.hash += "?machine=m0";
  render(<PoolsPage id={ID} />);
  const image = await screen.findByAltText("Screen of m0");
  expect(image.getAttribute("src")).toBe("blob:image");
  expect(await screen.findByText("booted")).toBeTruthy();
  fireEvent.keyDown(window, { key: "Escape" });
  await waitFor(() => expect(screen.queryByRole("complementary")).toBeNull());
  expect(window.location.hash).not.toContain("machine");
});

test("a screen that cannot be shown says why", async () => {
  const problem = { error: "the machine sent no screenshot within 5 s" };
  answers[`${BASE}/machines/m0/screenshot`] = () => Response.json(problem, { status: 503 });
  window.location.hash += "?machine=m0";
  render(<PoolsPage id={ID} />);
  expect(await screen.findByText(problem.error)).toBeTruthy();
});

test("a machine is retired after a confirmation", async () => {
  answers[`${BASE}/machines/m0/retire`] = () => Response.json({ ok: true, message: "m0 is replaced" });
  window.location.hash += "?machine=m0";
  render(<PoolsPage id={ID} />);
  fireEvent.click(await screen.findByText("Retire…"));
  expect(sent).toEqual([]);
  expect(screen.getByText(/when its lease ends\?/)).toBeTruthy();
  fireEvent.click(screen.getByText("Retire m0"));
  expect(await screen.findByText("m0 is replaced")).toBeTruthy();
  expect(sent).toEqual([[`${BASE}/machines/m0/retire`, "{}"]]);
});

test("a pool that does not answer shows its problem", async () => {
  answers[BASE] = () => Response.json(detail({ row: row({ problem: "it is gone" }), machines: [], events: [] }));
  render(<PoolsPage id={ID} />);
  expect(await screen.findByText("it is gone")).toBeTruthy();
});

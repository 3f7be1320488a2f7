import { cleanup, fireEvent, render, screen, within } from "@testing-library/preact";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { AgentServerRow, ServedAgent } from "../api";
import { ServersPage } from "./ServersPage";

const ROW: AgentServerRow = {
  id: "h:5",
  address: "h:5",
  agents: 1200,
  queued: 7,
  calls_per_second: 1534.2,
  memory: 48_000_000,
  seconds: 75,
  problem: "",
};
const DEAD: AgentServerRow = { ...ROW, id: "h:6", address: "h:6", problem: "no agent server answers at h:6" };

function agent(id: string, queued: number): ServedAgent {
  return {
    id,
    name: "<i>Ann</i>",
    kind: "<b>Critic</b>",
    queued,
    running: 1,
    calls: 10,
    failed: 2,
    seconds: 3,
    error: "",
  };
}

let answers: Record<string, unknown>;

beforeEach(() => {
  answers = {
    "api/servers": { servers: [ROW, DEAD] },
    "api/servers/h%3A5": { row: ROW, agents: [agent("a-1", 2), agent("a-2", 5)] },
    "api/servers/h%3A6": { row: DEAD, agents: [] },
  };
  vi.stubGlobal("fetch", async (address: string) => Response.json(answers[address] ?? { error: "unknown" }));
  window.location.hash = "#/servers/h%3A5";
});
afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
});

test("servers are listed with their figures, a dead one with its problem", async () => {
  render(<ServersPage />);
  expect((await screen.findByText("h:5")).closest("a")?.getAttribute("href")).toBe("#/servers/h%3A5");
  expect(screen.getByText("1,534")).toBeTruthy();
  expect(screen.getByText("48.0 MB")).toBeTruthy();
  const dead = screen.getByText("no agent server answers at h:6").closest("[role=row]");
  expect(dead?.textContent).not.toContain("1,200");
});

test("agents are listed, can be sorted, and their names and classes are text", async () => {
  const { container } = render(<ServersPage id="h:5" />);
  const grid = await screen.findByRole("grid", { name: "Agents" });
  expect(within(grid).getAllByText("<b>Critic</b>").length).toBe(2);
  expect(within(grid).getAllByText("<i>Ann</i>").length).toBe(2);
  expect(container.querySelector("b, i")).toBeNull();
  expect(screen.getByText(/2 agents of 1,200/)).toBeTruthy();
  const first = () => grid.querySelector('[aria-rowindex="2"]')?.textContent;
  expect(first()).toContain("a-1");
  fireEvent.click(screen.getByRole("button", { name: "Queued" }));
  expect(window.location.hash).toContain("sort=-queued");
  await vi.waitFor(() => expect(first()).toContain("a-2"));
});

test("an agent that could not be constructed shows its error as text", async () => {
  const failed = { ...agent("a-3", 0), error: "AccessDenied: <b>not here</b>" };
  answers["api/servers/h%3A5"] = { row: ROW, agents: [agent("a-1", 2), failed] };
  const { container } = render(<ServersPage id="h:5" />);
  expect(await screen.findByText("AccessDenied: <b>not here</b>")).toBeTruthy();
  expect(container.querySelector("b")).toBeNull();
});

test("a dead server shows its problem only", async () => {
  render(<ServersPage id="h:6" />);
  expect(await screen.findByText("no agent server answers at h:6")).toBeTruthy();
  expect(screen.queryByRole("grid")).toBeNull();
});

test("without servers, the page says how to name one", async () => {
  answers["api/servers"] = { servers: [] };
  render(<ServersPage />);
  expect(await screen.findByText(/--agent-server/)).toBeTruthy();
});

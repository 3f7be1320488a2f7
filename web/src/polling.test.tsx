import { act, cleanup, render, screen } from "@testing-library/preact";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { usePolled } from "./polling";

let asked = 0;
let settle: { resolve: (value: string) => void; reject: (error: Error) => void; signal: AbortSignal };

function Shown({ name }: { name: string | null }) {
  const { data, error } = usePolled<string>(name, 2, (signal) => {
    asked += 1;
    return new Promise((resolve, reject) => {
      settle = { resolve, reject, signal };
    });
  });
  return <p>{`${data ?? "nothing"}/${error}`}</p>;
}

beforeEach(() => {
  asked = 0;
  vi.useFakeTimers();
});
afterEach(() => {
  cleanup();
  vi.useRealTimers();
});

async function pass(seconds: number): Promise<void> {
  await act(async () => {
    await vi.advanceTimersByTimeAsync(seconds * 1000);
  });
}

async function reply(text: string): Promise<void> {
  await act(async () => settle.resolve(text));
}

test("a slow server gets one request at a time", async () => {
  render(<Shown name="a" />);
  await pass(30);
  expect(asked).toBe(1);
  await reply("one");
  expect(screen.getByText("one/")).toBeTruthy();
  await pass(1.9);
  expect(asked).toBe(1);
  await pass(0.2);
  expect(asked).toBe(2);
});

test("the last answer stays when requests fail, and asking goes on", async () => {
  render(<Shown name="a" />);
  await reply("one");
  for (let round = 2; round < 5; round++) {
    await pass(2.1);
    expect(asked).toBe(round);
    await act(async () => settle.reject(new Error("it is gone")));
    expect(screen.getByText("one/it is gone")).toBeTruthy();
  }
  await pass(2.1);
  await reply("two");
  expect(screen.getByText("two/")).toBeTruthy();
});

test("another resource drops the answer of the first one, and no resource asks nothing", async () => {
  const { rerender } = render(<Shown name="a" />);
  await reply("one");
  await pass(2.1);
  const first = settle;
  rerender(<Shown name="b" />);
  expect(screen.getByText("nothing/")).toBeTruthy();
  expect(first.signal.aborted).toBe(true);
  await act(async () => first.resolve("late"));
  expect(screen.getByText("nothing/")).toBeTruthy();
  const before = asked;
  rerender(<Shown name={null} />);
  await pass(10);
  expect(asked).toBe(before);
});

test("a page in the background asks nothing", async () => {
  const hidden = vi.spyOn(document, "hidden", "get").mockReturnValue(true);
  render(<Shown name="a" />);
  await pass(10);
  expect(asked).toBe(0);
  hidden.mockRestore();
  await pass(2.1);
  expect(asked).toBe(1);
});

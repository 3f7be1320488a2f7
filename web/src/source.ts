/** Where data comes from: the API of the server, or the files of an export. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import type { PageSettings } from "./api";

export class RequestFailed extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** Set once by `loadSettings`, before the first page is shown. */
export const settings: PageSettings = { version: "", folder: "", static: false, formats: [] };

export async function loadSettings(): Promise<void> {
  Object.assign(settings, await answer(await fetch("data/settings.json")));
}

/** The address of a resource: `runs/NAME/timeline` with its parameters. */
export function address(path: (string | number)[], params: Record<string, string | number> = {}): string {
  const parts = joined(path);
  if (settings.static) return `data/${exportedFile(path, params)}`;
  const query = new URLSearchParams(Object.entries(params).map(([name, value]) => [name, String(value)])).toString();
  return `api/${parts}${query ? `?${query}` : ""}`;
}

/** The file of an export that has a resource; the table is in docs/design/view.md. */
function exportedFile(path: (string | number)[], params: Record<string, string | number>): string {
  if (path[0] === "compare") return `${joined(["compare", params.runs ?? ""])}.json`;
  if (path[0] === "runs" && path.length === 2) return `${joined(path)}/run.json`;
  if (path[2] === "images") return joined(path);
  return `${joined(path)}.${path[4] === "text" ? "txt" : "json"}`;
}

function joined(path: (string | number)[]): string {
  return path.map((part) => encodeURIComponent(String(part))).join("/");
}

export async function load<T>(
  path: (string | number)[],
  params: Record<string, string | number> = {},
  signal?: AbortSignal,
): Promise<T> {
  return (await answer(await fetch(address(path, params), { signal: signal ?? null }))) as T;
}

export async function send<T>(path: (string | number)[], body: unknown): Promise<T> {
  const sent = await fetch(address(path), {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  return (await answer(sent)) as T;
}

/** A resource that is text, such as a log. */
export async function loadText(path: (string | number)[], signal: AbortSignal): Promise<string> {
  return (await checked(await fetch(address(path), { signal }))).text();
}

/** A resource that is an image. */
export async function loadImage(path: (string | number)[], signal: AbortSignal): Promise<Blob> {
  return (await checked(await fetch(address(path), { signal }))).blob();
}

async function answer(response: Response): Promise<unknown> {
  return (await checked(response)).json();
}

async function checked(response: Response): Promise<Response> {
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = ((await response.json()) as { error: string }).error || message;
  } catch {
    // Not an answer of our server.
  }
  if (response.status === 401)
    message = "This page is no longer signed in. Open the link that `paragent view` printed.";
  throw new RequestFailed(response.status, message);
}

export interface Loaded<T> {
  data: T | undefined;
  error: string;
  reload: () => void;
}

/** Load a resource; load it again when the address changes or `reload` is called. The old data stays until then. */
export function useData<T>(path: (string | number)[] | null, params: Record<string, string | number> = {}): Loaded<T> {
  const key = path === null ? null : address(path, params);
  const [state, setState] = useState<{ key: string | null; data?: T; error: string }>({ key: null, error: "" });
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (path === null || key === null) return;
    const controller = new AbortController();
    load<T>(path, params, controller.signal).then(
      (data) => setState({ key, data, error: "" }),
      (error: Error) => {
        if (!controller.signal.aborted) setState((before) => ({ ...before, key, error: error.message }));
      },
    );
    return () => controller.abort();
  }, [key, round]);
  const reload = useCallback(() => setRound((before) => before + 1), []);
  return { data: state.key === key || state.error === "" ? state.data : undefined, error: state.error, reload };
}

/** Call `handle` with each server-sent event of a live resource. The browser connects again by itself. */
export function useEvents<T>(path: (string | number)[] | null, handle: (name: string, data: T) => void): boolean {
  const key = path === null || settings.static ? null : address(path);
  const [connected, setConnected] = useState(false);
  const latest = useRef(handle);
  latest.current = handle;
  useEffect(() => {
    if (key === null) return;
    const events = new EventSource(key);
    const take = (event: MessageEvent<string>) => latest.current(event.type, JSON.parse(event.data) as T);
    for (const name of ["status", "runs", "end"]) events.addEventListener(name, take);
    events.addEventListener("end", () => events.close());
    events.onopen = () => setConnected(true);
    events.onerror = () => setConnected(false);
    return () => {
      events.close();
      setConnected(false);
    };
  }, [key]);
  return connected;
}

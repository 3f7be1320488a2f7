/** Resources that are loaded again and again while a page shows them. */
import { useEffect, useRef, useState } from "preact/hooks";
import { load } from "./source";

export interface Polled<T> {
  /** The newest answer; it stays when a later request fails. */
  data: T | undefined;
  /** Why the newest request failed; empty if it did not. */
  error: string;
  /** When `data` was received, in milliseconds of `performance.now()`. */
  receivedAt: number;
  /** Ask now. */
  refresh: () => void;
}

/**
 * Ask with `read`, and again `seconds` after each answer. A slow server gets one request at a time, and a page in the background
 * asks nothing. A new `key` means another resource; null means none.
 */
export function usePolled<T>(
  key: string | null,
  seconds: number,
  read: (signal: AbortSignal) => Promise<T>,
): Polled<T> {
  const [state, setState] = useState<{ key: string | null; data?: T; error: string; receivedAt: number }>({
    key: null,
    error: "",
    receivedAt: 0,
  });
  const [round, setRound] = useState(0);
  const latest = useRef(read);
  latest.current = read;
  useEffect(() => {
    if (key === null) return;
    const controller = new AbortController();
    let timer: ReturnType<typeof setTimeout>;
    const ask = async () => {
      if (!document.hidden) {
        try {
          const data = await latest.current(controller.signal);
          if (controller.signal.aborted) return;
          setState({ key, data, error: "", receivedAt: performance.now() });
        } catch (error) {
          if (controller.signal.aborted) return;
          const message = error instanceof Error ? error.message : String(error);
          setState((before) => (before.key === key ? { ...before, error: message } : failed(key, message)));
        }
      }
      timer = setTimeout(ask, seconds * 1000);
    };
    ask();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [key, seconds, round]);
  const refresh = () => setRound((before) => before + 1);
  const { data, error, receivedAt } = state.key === key ? state : failed(key, "");
  return { data: data as T | undefined, error, receivedAt, refresh };
}

function failed(key: string | null, error: string) {
  return { key, data: undefined, error, receivedAt: 0 };
}

/** A record of the API that is loaded again and again. */
export function usePolledData<T>(path: (string | number)[] | null, seconds: number): Polled<T> {
  return usePolled<T>(path?.join("/") ?? null, seconds, (signal) => load<T>(path ?? [], {}, signal));
}

/** Seconds since a moment of `performance.now()`, counted on every second. */
export function useElapsed(since: number): number {
  const [now, setNow] = useState(performance.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(performance.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return since === 0 ? 0 : Math.max(0, now - since) / 1000;
}

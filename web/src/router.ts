/** Routes in the hash of the address: `#/run/NAME/rollout/TASK/1?step=4`. The address is the whole state of a page. */
import { useEffect, useState } from "preact/hooks";

export interface Route {
  /** The decoded parts of the path, without empty ones. */
  path: string[];
  params: URLSearchParams;
}

export type Params = Record<string, string | number | null | undefined>;

export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#/, "").split("?", 2);
  return { path: path.split("/").filter(Boolean).map(decode), params: new URLSearchParams(query) };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of a page. Parameters that are null, undefined or empty are left out. */
export function href(path: (string | number)[], params: Params = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  }
  const text = query.toString();
  return `#/${path.map((part) => encodeURIComponent(String(part))).join("/")}${text ? `?${text}` : ""}`;
}

export function navigate(address: string): void {
  window.location.hash = address;
}

/** The current address with some parameters changed. */
export function changedAddress(changes: Params): string {
  const { path, params } = parseRoute(window.location.hash);
  const all: Params = Object.fromEntries(params);
  return href(path, { ...all, ...changes });
}

/** Change some parameters of the current address; with `replace`, without a new entry in the history. */
export function setParams(changes: Params, replace = true): void {
  const address = changedAddress(changes);
  if (address === window.location.hash) return;
  if (replace) {
    window.history.replaceState(null, "", address);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    window.location.hash = address;
  }
}

export function useRoute(): Route {
  const [hash, setHash] = useState(window.location.hash);
  useEffect(() => {
    const changed = () => setHash(window.location.hash);
    window.addEventListener("hashchange", changed);
    changed(); // it may have changed since the page was drawn
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return parseRoute(hash);
}

import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

export interface KeyActions {
  turn: (direction: 1 | -1) => void;
  task: (direction: 1 | -1) => void;
  failure: (direction: 1 | -1) => void;
  wrong: (direction: 1 | -1) => void;
  error: (direction: 1 | -1) => void;
  screenshot: (direction: 1 | -1) => void;
  help: () => void;
}

export const KEYS: [string, string][] = [
  ["j ↓", "next turn"],
  ["k ↑", "previous turn"],
  ["e E", "next, previous error in this rollout"],
  ["→ ←", "next, previous screenshot"],
  ["n p", "next, previous rollout of the list"],
  ["w W", "next, previous wrong answer of the list"],
  ["f F", "next, previous failed rollout of the list"],
  ["?", "show or hide these keys"],
];

/** Perform actions of keys, except where text is entered or another key has a meaning. */
export function useKeys(actions: KeyActions): void {
  const latest = useRef(actions);
  latest.current = actions;
  useLayoutEffect(() => {
    const onKeyDown = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTaken(event)) return;
      if (performKey(event.key, latest.current)) event.preventDefault();
    };
    window.addEventListener("keydown", onKeyDown);
    return () => window.removeEventListener("keydown", onKeyDown);
  }, []);
}

function isTaken(event: KeyboardEvent): boolean {
  if (!(event.target instanceof Element)) return false;
  if (event.target.closest("input, textarea, select, dialog, [contenteditable]")) return true;
  // Arrow keys scroll a text that has the focus.
  return event.key.startsWith("Arrow") && event.target.closest("pre, .long-text, .table-scroll") !== null;
}

/** Perform the action of a key; false if it has none. */
export function performKey(key: string, actions: KeyActions): boolean {
  switch (key) {
    case "j":
    case "ArrowDown":
      actions.turn(1);
      return true;
    case "k":
    case "ArrowUp":
      actions.turn(-1);
      return true;
    case "ArrowRight":
      actions.screenshot(1);
      return true;
    case "ArrowLeft":
      actions.screenshot(-1);
      return true;
    case "n":
      actions.task(1);
      return true;
    case "p":
      actions.task(-1);
      return true;
    case "f":
      actions.failure(1);
      return true;
    case "F":
      actions.failure(-1);
      return true;
    case "w":
      actions.wrong(1);
      return true;
    case "W":
      actions.wrong(-1);
      return true;
    case "e":
      actions.error(1);
      return true;
    case "E":
      actions.error(-1);
      return true;
    case "?":
      actions.help();
      return true;
  }
  return false;
}

/** The list of keys. */
export function KeyHelp({ onClose }: { onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return (
    <dialog
      ref={dialog}
      class="key-help"
      aria-label="Keys"
      onClose={onClose}
      onKeyDown={(event) => event.key === "?" && dialog.current?.close()}
    >
      <h2>Keys</h2>
      <dl class="key-list">
        {KEYS.map(([keys, meaning]) => (
          <div key={keys} class="key-row">
            <dt class="key-names">
              {keys.split(" ").map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd class="key-meaning">{meaning}</dd>
          </div>
        ))}
      </dl>
      <button type="button" class="button" onClick={() => dialog.current?.close()}>
        Close
      </button>
    </dialog>
  );
}

/** Words and colours of states: those of the terminal display (`COLOURS` in `paragent.cli.tables`). */

/** The name of the CSS variable with the colour of a state. */
export function stateColour(state: string): string {
  return `--state-${COLOURS[state] ?? "grey"}`;
}

export type ColourName =
  | "green"
  | "red"
  | "yellow"
  | "magenta"
  | "cyan"
  | "blue"
  | "grey"
  | "dim"
  | "orange"
  | "teal"
  | "purple";

const COLOURS: Record<string, ColourName> = {
  // Rollouts
  completed: "green",
  right: "green",
  "partly right": "yellow",
  wrong: "red",
  failed: "red",
  "timed out": "yellow",
  infrastructure: "magenta",
  unscored: "purple",
  cancelled: "grey",
  running: "cyan",
  pending: "dim",
  // Runs
  complete: "green",
  paused: "yellow",
  pausing: "yellow",
  stopping: "yellow",
  stopped: "grey",
  starting: "teal",
  unreadable: "red",
  // Machines
  booting: "blue",
  free: "dim",
  leased: "green",
  resetting: "yellow",
  quarantined: "red",
  // Activities
  "waiting for a machine": "yellow",
  opening: "purple",
  working: "cyan",
  generating: "blue",
  acting: "green",
  "waiting for the endpoint": "orange",
  scoring: "magenta",
  closing: "grey",
  idle: "dim",
  // Workers
  started: "blue",
  ready: "green",
  lost: "red",
};

/** The colour of a state as a value, for a canvas. */
export function resolvedColour(state: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(stateColour(state)).trim();
}

/** Light and dark. The system's setting is used until the reader chooses one. */

export type Theme = "light" | "dark";
const KEY = "paragent-theme";

export function currentTheme(): Theme {
  const chosen = readChoice();
  if (chosen === "light" || chosen === "dark") return chosen;
  return window.matchMedia?.("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

export function setTheme(theme: Theme): void {
  try {
    window.localStorage.setItem(KEY, theme);
  } catch {
    // Storage is off: the choice lasts until the page is closed.
  }
  applyTheme(theme);
}

export function applyTheme(theme: Theme): void {
  document.documentElement.dataset.theme = theme;
  window.dispatchEvent(new Event("themechange")); // canvases draw again
}

function readChoice(): string | null {
  try {
    return window.localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

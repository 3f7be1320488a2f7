import { render } from "preact";
import { App } from "./App";
import { loadSettings } from "./source";
import "./style.css";
import { applyTheme, currentTheme } from "./theme";

applyTheme(currentTheme());
const root = document.getElementById("app") as HTMLElement;
loadSettings().then(
  () => render(<App />, root),
  (error: Error) => {
    root.textContent = error.message; // text, never markup
    root.className = "message error";
  },
);

import { useState } from "preact/hooks";
import { currentTheme, setTheme } from "../theme";

/** Switches between light and dark. */
export function ThemeButton() {
  const [theme, setShown] = useState(currentTheme());
  const other = theme === "dark" ? "light" : "dark";
  const change = () => {
    setTheme(other);
    setShown(other);
  };
  return (
    <button
      type="button"
      class="icon-button"
      onClick={change}
      aria-label={`Use the ${other} theme`}
      title={`Use the ${other} theme`}
    >
      {theme === "dark" ? "☀" : "☾"}
    </button>
  );
}

import preact from "@preact/preset-vite";
import { defineConfig } from "vitest/config";

// Addresses are relative, so that an export works below any path. `npm run dev` sends requests of data to a running
// `paragent view --port 8123 --no-browser`; open its link once, so that the cookie is set.
export default defineConfig({
  base: "./",
  plugins: [preact(), { name: "woff2", enforce: "pre", transform: onlyWoff2 }],
  build: {
    outDir: "../src/paragent/view/bundle",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the Content-Security-Policy allows no data: addresses
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 700,
    license: { fileName: "licenses.md" }, // of the packages that the bundle contains
  },
  server: { proxy: { "/api": "http://127.0.0.1:8123" } },
  test: { environment: "happy-dom", include: ["src/**/*.test.{ts,tsx}"] },
});

/** The fonts of formulas in one format: all browsers that the pages support read it. */
function onlyWoff2(code: string, id: string): string | undefined {
  return id.endsWith("katex.min.css") ? code.replace(/,url\([^)]*\) ?format\("(?:woff|truetype)"\)/g, "") : undefined;
}

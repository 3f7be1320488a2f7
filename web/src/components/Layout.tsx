import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { href, useRoute } from "../router";
import { settings } from "../source";
import { ThemeButton } from "./ThemeButton";

export interface Crumb {
  label: string;
  address?: string;
}

interface LayoutProps {
  /** The path to this page; the last one is its title. */
  crumbs: Crumb[];
  /** Buttons at the right of the head. */
  actions?: ComponentChildren;
  children: ComponentChildren;
}

const PAGES = [
  { label: "Runs", path: [], key: "" },
  { label: "Pools", path: ["pools"], key: "pools" },
  { label: "Agent servers", path: ["servers"], key: "servers" },
];

/** The frame of every page: navigation, the path to the page, and its content. */
export function Layout({ crumbs, actions, children }: LayoutProps) {
  const route = useRoute();
  const title = crumbs.map((crumb) => crumb.label).join(" · ");
  useEffect(() => {
    document.title = title ? `${title} – paragent` : "paragent";
  }, [title]);
  const current = ["pools", "servers"].includes(route.path[0] ?? "") ? route.path[0] : "";
  return (
    <>
      <button type="button" class="skip-link" onClick={focusContent}>
        Skip to content
      </button>
      <header class="top-bar">
        <a class="brand" href={href([])}>
          <img src="icon.svg" alt="" width="20" height="20" />
          paragent
        </a>
        <nav aria-label="Pages">
          {PAGES.filter((page) => !settings.static || page.key === "").map((page) => (
            <a key={page.key} href={href(page.path)} aria-current={current === page.key ? "page" : undefined}>
              {page.label}
            </a>
          ))}
        </nav>
        <nav aria-label="Path" class="crumbs">
          {crumbs.map((crumb, index) => (
            <span key={index} class="crumb">
              {crumb.address ? (
                <a href={crumb.address}>{crumb.label}</a>
              ) : (
                <span aria-current="page">{crumb.label}</span>
              )}
            </span>
          ))}
        </nav>
        <div class="top-actions">
          {actions}
          <ThemeButton />
        </div>
      </header>
      <main id="content" tabIndex={-1}>
        {children}
      </main>
    </>
  );
}

function focusContent(): void {
  document.getElementById("content")?.focus();
}

/** Where pages are scrolled to: a new page begins at its top, and the way back leads to the same place. */
import { useEffect, useLayoutEffect } from "preact/hooks";

/** By address: how far the anchor of the page was from the top of the window. */
const places = new Map<string, number>();

/** Scroll to the top when another page is shown. */
export function useScrollToTop(page: string): void {
  useLayoutEffect(() => window.scrollTo(0, 0), [page]);
}

/**
 * Remember where this page is scrolled to, and return there when it is shown again and its content is ready. Places are relative
 * to an element, because what is above it may still grow.
 */
export function useScrollPlace(anchor: { current: HTMLElement | null }, isReady: boolean): void {
  useEffect(() => {
    if (!isReady) return;
    const top = () => anchor.current?.getBoundingClientRect().top ?? 0;
    const place = places.get(window.location.hash);
    if (place !== undefined) window.scrollBy(0, top() - place);
    const remember = () => places.set(window.location.hash, top());
    window.addEventListener("scroll", remember, { passive: true });
    return () => window.removeEventListener("scroll", remember);
  }, [isReady]);
}

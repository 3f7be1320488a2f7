/** Where pages are scrolled to: a new page begins at its top, and the way back leads to the same place. */
import { useEffect, useLayoutEffect } from "preact/hooks";

const places = new Map<string, number>();

/** Scroll to the top when another page is shown. */
export function useScrollToTop(page: string): void {
  useLayoutEffect(() => window.scrollTo(0, 0), [page]);
}

/** Remember where this page is scrolled to, and return there when it is shown again and its content is ready. */
export function useScrollPlace(isReady: boolean): void {
  useEffect(() => {
    if (!isReady) return;
    const place = places.get(window.location.hash);
    if (place) window.scrollTo(0, place);
    const remember = () => places.set(window.location.hash, window.scrollY);
    window.addEventListener("scroll", remember, { passive: true });
    return () => window.removeEventListener("scroll", remember);
  }, [isReady]);
}

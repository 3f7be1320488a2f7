"""The browser of a worker: one process tree, one isolated context per attempt."""

from __future__ import annotations

import os
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from paragent._internal.processes import plain_environment
from paragent.envs.web.ssrf_proxy import SsrfProxy
from paragent.errors import EnvironmentFailed, MissingProgram

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from playwright.async_api import Browser as PlaywrightBrowser
    from playwright.async_api import BrowserContext

__all__ = ["FLAGS", "Browser", "find_chromium"]

_START_LIMIT = 60.0
"""Seconds; it takes one or two on a quiet machine."""
_DISPLAY = ("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY")
"""Variables of a browser that a person looks at, beside the plain ones: a browser runs other people's code."""
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",  # WebRTC would send UDP past the proxy, to any address
    "--js-flags=--max-old-space-size=512",
]


class Browser:
    """A running Chromium whose every connection goes through the proxy."""

    def __init__(self, chromium: PlaywrightBrowser, proxy: SsrfProxy) -> None:
        self._chromium = chromium
        self.proxy = proxy

    @classmethod
    @asynccontextmanager
    async def running(
        cls, *, program: Path | None, headless: bool, allow_private: bool, site: Path | None
    ) -> AsyncIterator[Browser]:
        """Run a browser for the length of a `with`.

        Raises:
            MissingProgram: there is no Chromium.
            EnvironmentFailed: it does not start.
        """
        from playwright.async_api import Error, async_playwright  # not at the top: it takes 0.3 s to import

        executable = find_chromium(program)
        async with SsrfProxy.running(allow_private=allow_private, site=site) as proxy, async_playwright() as playwright:
            try:
                chromium = await playwright.chromium.launch(
                    executable_path=executable,
                    headless=headless,
                    # Chromium's own sandbox refuses to run as root, where containers usually run it.
                    args=[*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])],
                    proxy={"server": f"http://127.0.0.1:{proxy.port}", "bypass": "<-loopback>"},
                    env={**plain_environment(), **{name: os.environ[name] for name in _DISPLAY if name in os.environ}},
                    timeout=_START_LIMIT * 1000,
                    handle_sigint=False,
                    handle_sigterm=False,
                    handle_sighup=False,
                )
            except Error as error:
                raise EnvironmentFailed(f"{executable} does not start: {error}") from None
            try:
                yield cls(chromium, proxy)
            finally:
                await chromium.close()

    @property
    def alive(self) -> bool:
        """Whether the browser still runs."""
        return self._chromium.is_connected()

    async def new_context(self, width: int, height: int) -> BrowserContext:
        """Return a context that shares nothing with others: no cookies, no storage, no cache; the caller closes it.

        Raises:
            EnvironmentFailed: the browser died.
        """
        from playwright.async_api import Error

        try:
            return await self._chromium.new_context(
                accept_downloads=False, service_workers="block", viewport={"width": width, "height": height}
            )
        except Error as error:
            raise EnvironmentFailed(f"the browser died: {error}") from None


def find_chromium(program: Path | None) -> str:
    """Return the path of the browser: the given one, else the first that the system has.

    Raises:
        MissingProgram: there is none.
    """
    names = [str(program)] if program is not None else list(_PROGRAMS)
    for name in names:
        if found := shutil.which(name):
            return found
    raise MissingProgram(
        "the environment 'web'",
        f"there is no Chromium here (looked for {', '.join(names)})",
        "install your system's `chromium` package or name a browser with the option `chromium`",
    )

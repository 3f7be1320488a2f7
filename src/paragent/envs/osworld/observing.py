"""What an agent is shown of a desktop, and when: after an action, as soon as the screen is quiet."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paragent.envs.osworld.ground import GuestRefused
from paragent.envs.osworld.tree import Widget, as_table, widgets
from paragent.errors import EnvironmentFailed

if TYPE_CHECKING:
    from paragent.envs.osworld.controller import Controller
    from paragent.envs.osworld.film import Film

__all__ = ["Observation", "Observer"]

_LOOK = 0.15
"""Seconds between two looks at the screen: twice in the blink of a text cursor."""
_NO_TREE = "The computer gives no accessibility tree."
_REACTION = 0.6
"""Seconds in which a program that reacts at all has begun to draw, also under emulation; without any change until then,
none is waited for."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A desktop at one moment."""

    screenshot: bytes
    """Always taken: it is kept, also when the agent is not shown it."""
    text: str = ""
    """The accessibility tree and the terminal, as far as they are shown."""
    images: tuple[bytes, ...] = ()
    """What the agent is shown."""
    marks: tuple[tuple[int, int], ...] = ()
    """The middles of numbered marks."""
    tree: str | None = None
    """The accessibility tree as XML, if it is shown in any form."""
    terminal: str | None = None
    """What the terminal has on its screen, if that is shown and there is one."""


class Observer:
    """Looks at a desktop in the way that was asked for.

    Args:
        controller: of the guest.
        kind: `screenshot`, `a11y_tree`, `screenshot_a11y_tree` or `som`.
        terminal: whether what the terminal shows is told, too.
        screen: its size.
    """

    def __init__(self, controller: Controller, kind: str, screen: tuple[int, int], *, terminal: bool = False) -> None:
        self._controller, self._kind, self._screen, self._terminal = controller, kind, screen, terminal
        self._last: bytes = b""
        self.film: Film | None = None
        """Where every picture goes that is taken here, if there is one."""

    async def picture(self) -> bytes:
        """Return the screen as it is."""
        picture = await self._controller.screenshot()
        if self.film is not None:
            self.film.add(picture)
        return picture

    async def quiet(self, limit: float, *, still: float = _LOOK, reaction: float = _REACTION) -> bytes:
        """Wait until the screen has stopped changing, at most `limit` seconds, and return it.

        Args:
            limit: seconds.
            still: for how long it must have stayed the same.
            reaction: for how long a change is waited for, where there is none yet.
        """
        clock = asyncio.get_running_loop().time
        before, began = self._last, clock()
        seen = await self.picture()
        since = began
        while (now := clock()) - began < limit:
            await asyncio.sleep(min(_LOOK, max(0.0, limit - (now - began))))
            following = await self.picture()
            if following != seen:
                seen, since = following, clock()
            elif clock() - since >= still and (seen != before or clock() - began >= reaction):
                break
        self._last = seen
        return seen

    async def look(self) -> None:
        """Remember the screen as it is, so that a change of it is seen."""
        self._last = await self.picture()

    async def observe(self, screenshot: bytes | None = None) -> Observation:
        """Look; `screenshot` is one that was taken just now."""
        picture = screenshot if screenshot is not None else await self.picture()
        self._last = picture
        parts: list[str] = []
        images: tuple[bytes, ...] = (picture,) if self._kind in {"screenshot", "screenshot_a11y_tree"} else ()
        marks: tuple[tuple[int, int], ...] = ()
        tree = terminal = None
        if self._kind != "screenshot":
            tree = await self._tree()
            seen = [] if tree is None else self._widgets(tree)
            parts.append(_NO_TREE if tree is None else as_table(seen, numbered=self._kind == "som"))
            if self._kind == "som":
                from paragent.envs.osworld.marks import draw_marks

                images = (await asyncio.to_thread(draw_marks, picture, seen),)
                marks = tuple(widget.middle for widget in seen)
        if self._terminal:
            with contextlib.suppress(GuestRefused):
                terminal = await self._controller.terminal()
        if terminal:
            parts.append(f"The terminal shows:\n{terminal}")
        return Observation(picture, "\n\n".join(parts), images, marks, tree, terminal)

    async def _tree(self) -> str | None:
        """Return the accessibility tree; None if the guest has none, for which its agent may be to blame."""
        try:
            return await self._controller.accessibility_tree()
        except GuestRefused:
            return None

    def _widgets(self, tree: str) -> list[Widget]:
        try:
            return widgets(tree, self._screen)
        except ValueError as error:
            raise EnvironmentFailed(str(error)) from error

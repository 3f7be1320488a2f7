"""What set-up steps and evaluators stand on: the guest of one attempt, a private folder, and what the agent did last."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from paragent.errors import EnvironmentFailed, MachineFailed
from paragent.osworld.access import Access

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["Executed", "Ground", "GuestControl", "GuestRefused"]


class GuestRefused(MachineFailed):
    """The guest answered that it cannot do what it was asked for: there is no such file, window or program.

    The machine works. During the set-up another machine may do better; during the evaluation it is what the agent left.
    """


class Executed(Protocol):
    """What came of a command in the guest."""

    @property
    def output(self) -> str:
        """What it printed."""

    @property
    def error(self) -> str:
        """What it printed to its standard error."""

    @property
    def returncode(self) -> int:
        """Its exit status."""

    @property
    def status(self) -> str:
        """`success`, or `error` when the guest could not run it."""


class GuestControl(Protocol):
    """What is asked of the controller of a guest; each call has a time limit of its own.

    Raises:
        GuestRefused: (all methods) the guest says that it cannot.
        InfrastructureError: (all methods) the guest does not answer in time, or breaks the protocol.
    """

    @property
    def devtools(self) -> str:
        """`host:port` of the DevTools of the guest's browser."""

    async def screenshot(self) -> bytes:
        """Return the screen as PNG."""

    async def accessibility_tree(self) -> str:
        """Return the accessibility tree as XML."""

    async def terminal(self) -> str | None:
        """Return what the terminal shows; None if there is none."""

    async def execute(self, command: str | list[str], *, shell: bool = False, timeout: float = ...) -> Executed:
        """Run a command to its end."""

    async def run_python(self, code: str) -> Any:
        """Run Python code in the guest."""

    async def file(self, path: str) -> bytes | None:
        """Return the contents of a file; None if there is none that the guest can read."""

    async def upload(self, path: str, data: bytes) -> None:
        """Write a file."""

    async def launch(self, command: str | list[str], *, shell: bool = False) -> None:
        """Start a program and do not wait for it."""

    async def activate_window(self, name: str, *, strict: bool = False, by_class: bool = False) -> None:
        """Bring a window to the front."""

    async def desktop_path(self) -> str:
        """Return the path of the user's desktop folder."""

    async def wallpaper(self) -> bytes:
        """Return the picture behind the desktop."""

    async def screen_size(self) -> tuple[int, int]:
        """Return width and height of the screen."""

    async def window_size(self, app_class_name: str) -> tuple[int, int]:
        """Return width and height of an application's window."""

    async def list_directory(self, path: str) -> Mapping[str, Any]:
        """Return the tree below a folder: `type`, `name`, `children`."""

    async def platform(self) -> str:
        """Return the name of the guest's system, as `Linux`."""


async def _no_steps(steps: Sequence[Mapping[str, Any]], ground: Ground) -> None:
    raise EnvironmentFailed(f"{len(steps)} set-up steps for {ground.folder}, which was made without a way to run any")


@dataclass(slots=True)
class Ground:
    """One attempt's ground; whoever made it owns the folder and the machine behind the controller."""

    controller: GuestControl
    folder: Path
    """For files of this attempt alone; it exists."""
    client_password: str = "password"  # noqa: S105 - the published password of OSWorld's images
    screen: tuple[int, int] = (1920, 1080)
    last_action: str | Mapping[str, Any] | None = None
    """The last thing that the agent did, in the form in which it said it."""
    run_steps: Callable[[Sequence[Mapping[str, Any]], Ground], Awaitable[None]] = _no_steps
    """Runs set-up steps on this ground."""
    access: Access = field(default_factory=Access)
    """What task files may use of this host."""

    @property
    def failed(self) -> bool:
        """Whether the agent's last action was FAIL, as a text or as `{"action_type": "FAIL"}`."""
        action = self.last_action
        if isinstance(action, str):
            return action.strip() == "FAIL"
        return action is not None and action.get("action_type") == "FAIL"

    async def set_up(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Run set-up steps: those before an attempt, and those that an evaluator asks for."""
        await self.run_steps(steps, self)

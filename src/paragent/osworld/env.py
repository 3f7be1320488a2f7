"""OSWorld's desktop as an environment: an agent looks at the screen, acts, and is scored by what it has brought about."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from paragent._internal.registry import require_extra
from paragent._internal.validation import integer, seconds
from paragent.envs.base import Environment
from paragent.envs.tools import ToolFailed, ToolResult, tool
from paragent.errors import EnvironmentFailed, InfrastructureError
from paragent.osworld.access import Access
from paragent.osworld.actions import Action, BadAction, actions_in, command_of, read_action, special_in
from paragent.osworld.agent_adapter import predict_agent_factory
from paragent.osworld.context import AttemptContext
from paragent.osworld.controller import Controller
from paragent.osworld.coverage import missing_for_task
from paragent.osworld.evaluators import evaluate
from paragent.osworld.evaluators.evaluator import evaluation_processes
from paragent.osworld.observation import Observation, Observer, Recording
from paragent.osworld.setup import set_up
from paragent.osworld.task_files import is_index, read_index
from paragent.tasks import doing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from paragent.envs.base import AgentFactory, LoadedTask
    from paragent.tasks import BenchmarkTask

__all__ = ["OSWorldEnvironment", "OSWorldOptions"]

_SETTLE_STILL = 1.0
"""Seconds of a quiet screen after which programs that were launched count as started."""
_OPENING = {"launch", "open", "chrome_open_tabs"}
"""Set-up steps after which something new is on the screen, sooner or later."""
_ENDS = {"DONE": "done", "FAIL": "gave up"}
_COMPUTER_13 = (
    "You work at a computer with {width} x {height} pixels. Every call of the tool `computer` performs one action and shows you "
    "the screen after it. Coordinates are pixels from the upper left corner. When the task is done, perform DONE; if it cannot "
    "be done on this computer, perform FAIL; if something needs time, perform WAIT. The password of the user is {password}."
)
_PYAUTOGUI = (
    "You work at a computer with {width} x {height} pixels. Every call of the tool `pyautogui` runs Python code on it, with the "
    "module pyautogui, and shows you the screen after it. Coordinates are pixels from the upper left corner. Do not use "
    "pyautogui to take or search screenshots. When the task is done, give the command DONE; if it cannot be done on this "
    "computer, FAIL; if something needs time, WAIT. The password of the user is {password}."
)
_SOM = {
    "computer_13": " Marks with numbers are drawn on what can be clicked; `mark` stands for its coordinates.",
    "pyautogui": " Marks with numbers are drawn on what can be clicked; the variables tag_1, tag_2, ... are their coordinates.",
}


@dataclass(frozen=True, slots=True)
class OSWorldOptions:
    """The options of the environment `osworld`."""

    action_space: Annotated[Literal["computer_13", "pyautogui"], "how the agent acts"] = "computer_13"
    observation_type: Annotated[
        Literal["screenshot", "a11y_tree", "screenshot_a11y_tree", "som"], "what the agent is shown"
    ] = "screenshot"
    terminal: Annotated[bool, "show what the terminal has on its screen, too"] = False
    screen_width: Annotated[int, "in pixels"] = 1920
    screen_height: Annotated[int, "in pixels"] = 1080
    client_password: Annotated[str, "of the machine's user"] = "password"  # noqa: S105 - OSWorld's published one
    pause: Annotated[float, "seconds after an action by which a screen that is not quiet is looked at anyway"] = 2.0
    settle: Annotated[float, "seconds that programs which the set-up launches may take to appear"] = 20.0
    screenshots: Annotated[int, "how many of the last screenshots the model is sent"] = 3
    record: Annotated[bool, "keep a video of the screen"] = False
    strict_evaluators: Annotated[bool, "leave out known mistakes of OSWorld's metrics instead of repeating them"] = (
        False
    )
    data_folder: Annotated[Path | None, "whose files tasks may put into the guest; otherwise that of --data"] = None
    allow_private: Annotated[bool, "whether tasks may download from this computer and private networks"] = False

    def __post_init__(self) -> None:
        for name in ("pause", "settle"):
            seconds(getattr(self, name), name, zero=True)
        for name, least in (("screen_width", 1), ("screen_height", 1), ("screenshots", 0)):
            integer(getattr(self, name), name, least=least)


class OSWorldEnvironment(Environment):
    """A desktop, reached through its guest server.

    Metadata read: `config` (set-up steps), `evaluator`. Own score: `success`, what the task's evaluator says about the machine
    after the last action.
    """

    name = "osworld"
    metric = "success"
    options_type = OSWorldOptions
    one_at_a_time = True
    needs_desktop = True
    needs_internet = True
    machine_ports = (9222, 8080)
    """The browser's DevTools and VLC's interface, which some evaluators ask."""
    call_limit = 240.0
    """A guest allows a command 120 s and tells the agent; the screen is waited for and looked at after that."""
    options: OSWorldOptions

    def __init__(self, options: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(options, **more)
        chosen = self.options
        self.images_shown = chosen.screenshots
        self._tools = {name: one for name, one in self._tools.items() if name in _TOOLS[chosen.action_space]}
        self._screen = (chosen.screen_width, chosen.screen_height)
        self._access = Access(chosen.data_folder, chosen.allow_private)
        self._marks: tuple[tuple[int, int], ...] = ()
        self._seen: Observation | None = None
        """What was seen last; None while an action is under way, and if it was stopped."""
        self._ended = ""
        self._recording: Recording | None = None
        self._folder: Path | None = None
        self._attempt: AttemptContext | None = None
        self._controller: Controller | None = None
        self._observer: Observer | None = None
        self.instructions = self._instructions()

    @classmethod
    def load_tasks(cls, path: Path, document: Any) -> Iterator[LoadedTask] | None:
        return read_index(path, document) if is_index(document) else None

    @classmethod
    def agent_factory(cls, agent: Any) -> AgentFactory | None:
        return predict_agent_factory(agent)

    @property
    def needs_machine(self) -> bool:
        return True

    def _instructions(self) -> str:
        options = self.options
        width, height = self._screen
        told = _COMPUTER_13 if options.action_space == "computer_13" else _PYAUTOGUI
        marks = _SOM[options.action_space] if options.observation_type == "som" else ""
        return told.format(width=width, height=height, password=options.client_password) + marks

    async def check(self) -> None:
        if self.options.observation_type == "som":
            require_extra("the observation type 'som'", extra="osworld", package="PIL")

    def missing_requirements(self, item: BenchmarkTask) -> list[str]:
        if found := missing_for_task(item.metadata):
            return found  # its steps may not even be steps
        steps = [
            *(item.metadata.get("config") or ()),
            *((item.metadata.get("evaluator") or {}).get("postconfig") or ()),
        ]
        return [f"the file {refusal}" for refusal in self._access.refused(steps)]

    def calls_in(self, text: str) -> list[tuple[str, dict[str, Any]]]:
        space = self.options.action_space
        return [("computer" if space == "computer_13" else "pyautogui", said) for said in actions_in(text, space)]

    # --- an attempt -----------------------------------------------------------------------------------------------------

    async def open(self, item: BenchmarkTask, machine: Any = None) -> str:
        await super().open(item, machine)
        if machine is None:
            raise EnvironmentFailed("the environment 'osworld' was handed no machine")
        options = self.options
        self._controller = controller = Controller(machine)
        with contextlib.suppress(InfrastructureError):  # a guest that does not say has the size that was asked for
            self._screen = await controller.screen_size()
        self.instructions = self._instructions()
        self._folder = Path(tempfile.mkdtemp(prefix="paragent-osworld-"))
        self._attempt = AttemptContext(
            controller,
            self._folder,
            options.client_password,
            self._screen,
            run_steps=set_up,
            access=self._access,
        )
        self._observer = Observer(controller, options.observation_type, self._screen, terminal=options.terminal)
        steps = item.metadata.get("config") or []
        if steps:
            doing("setting up")
            await self._observer.look()
            await self._attempt.set_up(steps)
        if options.record:
            self._recording = Recording(item.id, controller, self._observer, self._folder)
            await self._recording.start()
        self._seen = seen = await self._observer.observe(await self._settled(steps))
        self._marks = seen.marks
        self.first_images = seen.images
        self.first_kept = () if seen.images else (seen.screenshot,)
        return "\n\n".join(part for part in (item.question, seen.text) if part)

    async def _settled(self, steps: Sequence[Mapping[str, Any]]) -> bytes | None:
        """Wait for what the set-up has started; return the screen."""
        assert self._observer is not None
        if not any(step.get("type") in _OPENING for step in steps):
            return None
        limit = self.options.settle
        return await self._observer.quiet(limit, still=_SETTLE_STILL, reaction=limit)

    async def observation(self) -> dict[str, Any]:
        """Return what OSWorld's own agents are shown: the screen, the tree as XML, the terminal, the instruction."""
        if self._observer is None or self.task is None:
            return {}
        self._seen = seen = self._seen or await self._observer.observe()
        told = {"screenshot": seen.screenshot, "accessibility_tree": seen.tree, "terminal": seen.terminal}
        return {**told, "instruction": self.task.question}

    @tool
    async def computer(
        self,
        action_type: Annotated[
            Literal[
                "MOVE_TO",
                "CLICK",
                "MOUSE_DOWN",
                "MOUSE_UP",
                "RIGHT_CLICK",
                "DOUBLE_CLICK",
                "DRAG_TO",
                "SCROLL",
                "TYPING",
                "PRESS",
                "KEY_DOWN",
                "KEY_UP",
                "HOTKEY",
                "WAIT",
                "FAIL",
                "DONE",
            ],
            "what to do",
        ],
        x: Annotated[float | None, "MOVE_TO, CLICK, RIGHT_CLICK, DOUBLE_CLICK, DRAG_TO: pixels from the left"] = None,
        y: Annotated[float | None, "as x: pixels from the top"] = None,
        mark: Annotated[int | None, "instead of x and y: the number of a mark on the screen"] = None,
        button: Annotated[
            Literal["left", "right", "middle"] | None, "CLICK, MOUSE_DOWN, MOUSE_UP: default left"
        ] = None,
        num_clicks: Annotated[int | None, "CLICK: 1 (default), 2 or 3"] = None,
        dx: Annotated[int | None, "SCROLL: clicks to the right"] = None,
        dy: Annotated[int | None, "SCROLL: clicks up; negative scrolls down"] = None,
        text: Annotated[str | None, "TYPING: the text"] = None,
        key: Annotated[str | None, "PRESS, KEY_DOWN, KEY_UP: a key, named as pyautogui does"] = None,
        keys: Annotated[list[str] | None, "HOTKEY: keys that are held together, in their order"] = None,
        parameters: Annotated[dict[str, Any] | None, "all parameters in one object, for those who prefer that"] = None,
    ) -> ToolResult:
        """Perform one action at the computer and see the screen after it."""
        beside: dict[str, Any] = {
            "x": x,
            "y": y,
            "mark": mark,
            "button": button,
            "num_clicks": num_clicks,
            "dx": dx,
            "dy": dy,
        }
        beside |= {"text": text, "key": key, "keys": keys}
        given = {name: value for name, value in beside.items() if value is not None}
        said: dict[str, Any] = {"action_type": action_type, **given}
        if parameters is not None:
            said["parameters"] = parameters
        return await self.act(said)

    @tool
    async def pyautogui(
        self,
        command: Annotated[str | None, "Python code that uses pyautogui, or one of the words WAIT, FAIL, DONE"] = None,
        action_type: Annotated[Literal["WAIT", "FAIL", "DONE"] | None, "instead of a command"] = None,
    ) -> ToolResult:
        """Run Python code with pyautogui at the computer and see the screen after it."""
        if (command is None) == (action_type is None):
            raise ToolFailed("give either a command or an action_type")
        return await self.act({"action_type": action_type} if action_type else command)

    async def act(self, said: Any) -> ToolResult:
        """Perform an action in any form of the action space, for agents that write OSWorld's own.

        Raises:
            ToolFailed: it is no action of the space; nothing was done.
            InfrastructureError: the machine broke.
        """
        if self._attempt is None or self._observer is None or self._controller is None:
            raise ToolFailed("there is no desktop yet")
        if self._ended:
            raise ToolFailed(f"the attempt has ended: {self._ended}")
        try:
            action = read_action(said, self.options.action_space, self._screen, self._marks)
        except BadAction as error:
            raise ToolFailed(f"this is no valid action, and nothing was done: {error}") from None
        self._attempt.last_action = action.special or action.said
        self._ended = _ENDS.get(action.special, "")
        self._seen = None
        trouble = await self._perform(action)
        if self._ended:
            seen = Observation(await self._observer.picture())
        else:
            seen = await self._observer.observe(await self._observer.quiet(self.options.pause))
            self._marks = seen.marks
        self._seen = seen
        return self._told(action, seen, trouble)

    async def _perform(self, action: Action) -> str:
        """Have the guest do it, once; return what it complained about."""
        assert self._controller is not None
        if action.special == "WAIT":
            await asyncio.sleep(self.options.pause)
        if not action.code:
            return ""
        done = await self._controller.execute(command_of(action.code))
        if done.status == "success" and done.returncode == 0:
            return ""
        lines = [line for line in (done.error or done.output).strip().splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with status {done.returncode}"

    def _told(self, action: Action, seen: Observation, trouble: str) -> ToolResult:
        said = f"The action failed: {trouble}" if trouble else self._ended or "The action was performed."
        extras = {"action": action.said, **({"done": True} if self._ended else {})}
        return ToolResult(
            "\n\n".join(part for part in (said, seen.text) if part),
            error=bool(trouble),
            extras=extras,
            images=seen.images,
            kept=() if seen.images else (seen.screenshot,),
            ends=self._ended,
        )

    # --- the end --------------------------------------------------------------------------------------------------------

    async def score(
        self, item: BenchmarkTask, answer: str, transcript: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float] | None:
        evaluator = item.metadata.get("evaluator")
        if evaluator is None:
            return None
        said = special_in(answer)  # a last message can be an action, too
        if (
            self._attempt is None
        ):  # a stored answer: the machine is gone, and all that can be known is how the agent ended
            said = said or special_in(_last_action(transcript))
            return {"success": float(said == "FAIL")} if evaluator.get("func") == "infeasible" else None
        self._attempt.last_action = said or self._attempt.last_action
        if (
            self._observer is not None and not self._attempt.failed
        ):  # what the last action began, a file being saved, may end
            await self._observer.quiet(self.options.pause)
        if self._recording is not None:
            await self._recording.stop()
        processes = await self.shared.get("osworld evaluators", evaluation_processes)
        return {
            "success": await evaluate(
                evaluator, self._attempt, processes=processes, strict=self.options.strict_evaluators
            )
        }

    async def close(self) -> None:
        if self._recording is not None:
            with contextlib.suppress(InfrastructureError):  # the machine may be what ended the attempt
                await self._recording.stop()
            if video := await self._recording.develop():
                self.files["recording.mp4"] = video
            self._recording = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        await super().close()


_TOOLS = {"computer_13": {"computer"}, "pyautogui": {"pyautogui"}}


def _last_action(transcript: Sequence[Mapping[str, Any]]) -> Any:
    """Return the last action of a stored conversation."""
    for message in reversed(transcript):
        for call in reversed(message.get("tool_calls") or ()):
            with contextlib.suppress(ValueError):
                return json.loads(call["function"]["arguments"])
    return None

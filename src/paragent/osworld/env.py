"""Environment `osworld`: an agent works at a desktop, and OSWorld's evaluators score the state of the machine."""

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
from paragent.execution import doing
from paragent.osworld.access import Access
from paragent.osworld.actions import Action, BadAction, actions_in, command_of, read_action, special_in
from paragent.osworld.agent_adapter import predict_agent_factory
from paragent.osworld.context import AttemptContext
from paragent.osworld.controller import Controller
from paragent.osworld.coverage import missing_for_task
from paragent.osworld.evaluators import evaluate
from paragent.osworld.evaluators.evaluator import evaluation_processes
from paragent.osworld.formats import is_index, read_index
from paragent.osworld.observation import DesktopObserver, Observation, ScreenRecording
from paragent.osworld.setup import set_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from paragent.envs.base import AgentFactory, LoadedTask
    from paragent.tasks import BenchmarkTask

__all__ = ["OSWorldEnvironment", "OSWorldOptions"]

_SETTLE_STILL = 1.0
"""Seconds without a change of the screen after which launched programs count as started."""
_OPENING = {"launch", "open", "chrome_open_tabs"}
"""Set-up steps that show something new on the screen."""
_ENDS = {"DONE": "done", "FAIL": "gave up"}
_TOOLS = {"computer_13": "computer", "pyautogui": "pyautogui"}
"""The tool of each action space."""
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
ActionType = Literal[
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
]
"""Actions of `computer_13`."""


@dataclass(frozen=True, slots=True)
class OSWorldOptions:
    """Options of the environment `osworld`."""

    action_space: Annotated[Literal["computer_13", "pyautogui"], "how the agent acts"] = "computer_13"
    observation_type: Annotated[
        Literal["screenshot", "a11y_tree", "screenshot_a11y_tree", "som"], "the kind of observation"
    ] = "screenshot"
    terminal: Annotated[bool, "add the text of the terminal to observations"] = False
    screen_width: Annotated[int, "in pixels"] = 1920
    screen_height: Annotated[int, "in pixels"] = 1080
    client_password: Annotated[str, "password of the machine's user"] = "password"  # noqa: S105 - OSWorld's published one
    pause: Annotated[float, "maximum seconds to wait for the screen to stop changing after an action"] = 2.0
    settle: Annotated[float, "maximum seconds to wait for programs that the set-up launches"] = 20.0
    screenshots: Annotated[int, "number of recent screenshots in the prompt"] = 3
    record: Annotated[bool, "keep a video of each rollout"] = False
    strict_evaluators: Annotated[bool, "correct known bugs of OSWorld's metrics instead of reproducing them"] = False
    data_folder: Annotated[Path | None, "folder whose files tasks may upload; default: the folder of --data"] = None
    allow_private: Annotated[bool, "allow tasks to download from this host and from private networks"] = False

    def __post_init__(self) -> None:
        for name in ("pause", "settle"):
            seconds(getattr(self, name), name, zero=True)
        for name, least in (("screen_width", 1), ("screen_height", 1), ("screenshots", 0)):
            integer(getattr(self, name), name, least=least)


class OSWorldEnvironment(Environment):
    """A desktop on a machine with OSWorld's guest protocol.

    Metadata: `config` (the set-up steps) and `evaluator`. Own score: `success`, the result of the task's evaluator on the machine
    after the last action.
    """

    name = "osworld"
    metric = "success"
    options_type = OSWorldOptions
    one_at_a_time = True
    needs_desktop = True
    needs_internet = True
    machine_ports = (9222, 8080)
    """The browser's DevTools and VLC's web interface, which some evaluators use."""
    call_limit = 240.0
    """A machine allows a command 120 s and reports a time-out to the agent. The observation comes after that."""
    options: OSWorldOptions

    def __init__(self, options: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(options, **more)
        chosen = self.options
        self.images_shown = chosen.screenshots
        tool_name = _TOOLS[chosen.action_space]
        self._tools = {tool_name: self._tools[tool_name]}
        self._screen = (chosen.screen_width, chosen.screen_height)
        self._access = Access(chosen.data_folder, chosen.allow_private)
        self._marks: tuple[tuple[int, int], ...] = ()
        self._seen: Observation | None = None
        """The last observation; None while an action runs, and if it was cancelled."""
        self._ended = ""
        self._recording: ScreenRecording | None = None
        self._folder: Path | None = None
        self._attempt: AttemptContext | None = None
        self._controller: Controller | None = None
        self._observer: DesktopObserver | None = None
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
        template = _COMPUTER_13 if options.action_space == "computer_13" else _PYAUTOGUI
        marks = _SOM[options.action_space] if options.observation_type == "som" else ""
        return template.format(width=width, height=height, password=options.client_password) + marks

    async def check(self) -> None:
        if self.options.observation_type == "som":
            require_extra("the observation type 'som'", extra="osworld", package="PIL")

    def missing_requirements(self, task: BenchmarkTask) -> list[str]:
        if found := missing_for_task(task.metadata):
            return found  # the steps may be malformed
        steps = [
            *(task.metadata.get("config") or ()),
            *((task.metadata.get("evaluator") or {}).get("postconfig") or ()),
        ]
        return [f"the file {refusal}" for refusal in self._access.refused(steps)]

    def calls_in(self, text: str) -> list[tuple[str, dict[str, Any]]]:
        space = self.options.action_space
        return [(_TOOLS[space], said) for said in actions_in(text, space)]

    # --- attempt ----------------------------------------------------------------------------------------------------------

    async def open(self, task: BenchmarkTask, machine: Any = None) -> str:
        await super().open(task, machine)
        if machine is None:
            raise EnvironmentFailed("the environment 'osworld' needs a machine: pass a leased one to `open`")
        options = self.options
        self._controller = controller = Controller(machine)
        with contextlib.suppress(InfrastructureError):  # a machine that does not answer has the requested size
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
        self._observer = DesktopObserver(controller, options.observation_type, self._screen, terminal=options.terminal)
        steps = task.metadata.get("config") or []
        if steps:
            doing("setting up")
            await self._observer.remember_screen()
            await self._attempt.set_up(steps)
        if options.record:
            self._recording = ScreenRecording(task.id, controller, self._observer, self._folder)
            await self._recording.start()
        self._seen = seen = await self._observer.observe(await self._wait_for_programs(steps))
        self._marks = seen.marks
        self.first_images = seen.images
        self.first_kept = () if seen.images else (seen.screenshot,)
        return "\n\n".join(part for part in (task.question, seen.text) if part)

    async def _wait_for_programs(self, steps: Sequence[Mapping[str, Any]]) -> bytes | None:
        """Wait until the programs that the set-up started are shown; return the last screenshot."""
        assert self._observer is not None
        if not any(step.get("type") in _OPENING for step in steps):
            return None
        limit = self.options.settle
        return await self._observer.wait_until_still(limit, still=_SETTLE_STILL, reaction=limit)

    async def observation(self) -> dict[str, Any]:
        """Return the observation for OSWorld's agents: screenshot, tree as XML, text of the terminal, instruction."""
        if self._observer is None or self.task is None:
            return {}
        self._seen = seen = self._seen or await self._observer.observe()
        return {
            "screenshot": seen.screenshot,
            "accessibility_tree": seen.tree,
            "terminal": seen.terminal,
            "instruction": self.task.question,
        }

    @tool
    async def computer(
        self,
        action_type: Annotated[ActionType, "what to do"],
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
        parameters: Annotated[dict[str, Any] | None, "all parameters in one object, as an alternative"] = None,
    ) -> ToolResult:
        """Perform one action at the computer and see the screen after it."""
        said: dict[str, Any] = {"action_type": action_type, "x": x, "y": y, "mark": mark, "button": button}
        said |= {"num_clicks": num_clicks, "dx": dx, "dy": dy, "text": text, "key": key, "keys": keys}
        said |= {"parameters": parameters}
        return await self.act({name: value for name, value in said.items() if value is not None})

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
        """Perform an action in any form of the action space, for agents that write OSWorld's own form.

        Raises:
            ToolFailed: the action is invalid; nothing was done.
            InfrastructureError: the machine failed.
        """
        if self._attempt is None or self._observer is None or self._controller is None:
            raise ToolFailed("the environment has not been opened")
        if self._ended:
            raise ToolFailed(f"the attempt has ended: {self._ended}")
        try:
            action = read_action(said, self.options.action_space, self._screen, self._marks)
        except BadAction as error:
            raise ToolFailed(f"invalid action, nothing was done: {error}") from None
        self._attempt.last_action = action.special or action.said
        self._ended = _ENDS.get(action.special, "")
        self._seen = None
        trouble = await self._perform(action)
        if self._ended:
            seen = Observation(await self._observer.screenshot())
        else:
            seen = await self._observer.observe(await self._observer.wait_until_still(self.options.pause))
            self._marks = seen.marks
        self._seen = seen
        return self._tool_result(action, seen, trouble)

    async def _perform(self, action: Action) -> str:
        """Run the action's code on the machine, once; return its error, empty if it succeeded."""
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

    def _tool_result(self, action: Action, seen: Observation, trouble: str) -> ToolResult:
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

    # --- scoring and closing ----------------------------------------------------------------------------------------------

    async def score(
        self, task: BenchmarkTask, answer: str, transcript: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float] | None:
        evaluator = task.metadata.get("evaluator")
        if evaluator is None:
            return None
        said = special_in(answer)  # the last message can be an action
        if self._attempt is None:  # a stored answer: the machine is gone, only the agent's last action is known
            said = said or special_in(_last_action(transcript))
            return {"success": float(said == "FAIL")} if evaluator.get("func") == "infeasible" else None
        self._attempt.last_action = said or self._attempt.last_action
        if self._observer is not None and not self._attempt.failed:
            # The last action may still have an effect, such as saving a file.
            await self._observer.wait_until_still(self.options.pause)
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
            with contextlib.suppress(InfrastructureError):  # the machine may have failed
                await self._recording.stop()
            if video := await self._recording.encode():
                self.files["recording.mp4"] = video
            self._recording = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        await super().close()


def _last_action(transcript: Sequence[Mapping[str, Any]]) -> Any:
    """Return the last action of a stored conversation."""
    for message in reversed(transcript):
        for call in reversed(message.get("tool_calls") or ()):
            with contextlib.suppress(ValueError):
                return json.loads(call["function"]["arguments"])
    return None

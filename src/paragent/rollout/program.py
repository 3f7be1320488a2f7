"""`ProgramAgent`: runs a program as the agent of one rollout, on this host, in a sandbox or in the leased machine."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from paragent._internal.processes import describe_exit, plain_environment
from paragent.agents.chat import AgentResult
from paragent.errors import EnvironmentFailed, MissingProgram, ProgramFailed
from paragent.rollout.gateway_access import gateway_variables
from paragent.rollout.program_settings import SANDBOX_ADVICE, SANDBOX_USER
from paragent.subprocesses.bubblewrap import TMP, SandboxFiles, reported_problem
from paragent.subprocesses.installations import SYSTEM_FILES, hidden_entries, installation_folders, path_folders
from paragent.subprocesses.program import MAIN, ProgramSpec, RunningProgram, start_in_sandbox, start_on_host
from paragent.tasks import ANSWER_CUT, ANSWERED

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from paragent.gateway import GatewayAddress
    from paragent.machines import Machine
    from paragent.rollout.episode import RolloutEpisode
    from paragent.rollout.program_settings import ProgramSettings
    from paragent.subprocesses.program import ProgramReport

__all__ = ["ProgramAgent", "check_sandbox"]

_ERROR_CHARACTERS = 2000
"""Characters of stderr in the error of a rollout; the step has more."""
_LINE_CHARACTERS = 300
"""Characters of the last line of stderr in the first line of the error, which summaries show."""
_INSIDE = "/run/paragent"
_HIDDEN_PERIOD = 10.0
"""Seconds after which hidden files are searched again. A large folder takes half a second, and a worker starts many programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where a program finds its files, as it sees them."""

    folder: str
    task: str
    mcp: str
    answer: str


class ProgramAgent:
    """A program that gets the question on stdin, calls the model gateway, and writes the answer to stdout or a file.

    Args:
        settings: the program.
        task: the document for `PARAGENT_TASK_FILE`.
        address: the rollout's address of the gateway.
        socket: the path of the gateway's Unix socket.
        machine: the leased machine, for programs that run there.
    """

    def __init__(
        self,
        settings: ProgramSettings,
        task: dict[str, Any],
        address: GatewayAddress,
        socket: str,
        machine: Machine | None = None,
    ) -> None:
        self._settings, self._task, self._address = settings, task, address
        self._socket, self._machine = socket, machine

    async def run_episode(self, episode: RolloutEpisode) -> AgentResult:
        """Run the program to its end and return its answer.

        Raises:
            ProgramFailed: it ended with an exit code other than 0, or was stopped by a limit.
            MissingProgram: the sandbox does not work here.
            InfrastructureError: the machine was lost, the program could not be started, or the sandbox was killed.
        """
        began = time.monotonic()
        try:
            running = await self._start(episode)
        except OSError as error:  # no memory, processes, file descriptors or disk space for it
            raise EnvironmentFailed(f"this host cannot start the program: {error}") from error
        try:
            try:
                report = await running.wait()
            except asyncio.CancelledError:
                self._record(episode, began, await asyncio.shield(running.stop()))
                raise
            self._record(episode, began, report)
        finally:
            await asyncio.shield(running.close())
        if self._settings.place == "sandbox" and report.killed and reported_problem(report.problem) is None:
            raise EnvironmentFailed(f"the program {report.problem}")  # a program cannot kill its own sandbox
        answer = _answer_in(report)
        if not episode.messages:  # it did not call the model
            episode.messages.append({"role": "user", "content": episode.question})
            episode.messages.append({"role": "assistant", "content": answer})
        return AgentResult(answer, ANSWER_CUT if report.cut else ANSWERED)

    def _record(self, episode: RolloutEpisode, began: float, report: ProgramReport) -> None:
        facts = {name: getattr(report, name) for name in ("exit_code", "stdout", "stderr", "problem")}
        place = self._settings.place
        episode.add_program(began, command=list(self._settings.command), place=place, **facts)

    def _start(self, episode: RolloutEpisode) -> Awaitable[RunningProgram]:
        starts = {"host": self._start_on_host, "sandbox": self._start_in_sandbox, "machine": self._start_in_machine}
        return starts[self._settings.place](episode)

    async def _start_on_host(self, episode: RolloutEpisode) -> RunningProgram:
        folder = Path(tempfile.mkdtemp(prefix="paragent-agent-"))
        work = folder / "work"
        work.mkdir()
        layout = _Layout(
            folder=str(work), task=f"{folder}/task.json", mcp=f"{folder}/mcp.json", answer=f"{folder}/answer"
        )
        for path, text in self._files(layout, self._address).items():
            Path(path).write_text(text)
        variables = {**plain_environment(), **self._variables(episode, layout, self._address)}
        return await start_on_host(self._spec(episode, layout, variables, remove=str(folder)))

    async def _start_in_sandbox(self, episode: RolloutEpisode) -> RunningProgram:
        settings = self._settings
        layout = _Layout(
            folder=f"{TMP}/work", task=f"{_INSIDE}/task.json", mcp=f"{_INSIDE}/mcp.json", answer=f"{TMP}/answer"
        )
        home = f"{TMP}/home"
        resolver = {"/etc/resolv.conf": os.path.realpath("/etc/resolv.conf")} if settings.network else {}
        files = SandboxFiles(
            readable=_readable(settings),
            inside=resolver,
            hidden=[*settings.hidden, *await asyncio.to_thread(_hidden_in, settings)],
            contents=self._files(layout, self._address),
            folders=[layout.folder, home],
            start_in=layout.folder,
        )
        shown = {name: value for name, value in plain_environment().items() if name in {"LANG", "TZ", "PATH"}}
        variables = {"PATH": os.defpath, **shown, "HOME": home, "TMPDIR": TMP}
        variables |= self._variables(episode, layout, self._address)
        return await start_in_sandbox(
            self._spec(episode, layout, variables),
            files,
            user=SANDBOX_USER,
            advice=SANDBOX_ADVICE,
            socket_path="" if settings.network else self._socket,
            port=urlsplit(self._address.url).port or 0,
            network=settings.network,
        )

    async def _start_in_machine(self, episode: RolloutEpisode) -> RunningProgram:
        from paragent.machines.tunnel import MachineTunnel  # most runs have no machines

        assert self._machine is not None
        tunnel = MachineTunnel(self._machine, self._socket)
        running = RunningProgram(tunnel)
        try:
            copied = {Path(file).name: Path(file).read_bytes() for file in self._settings.files}
            await tunnel.start(MAIN, {f"files/{name}": data for name, data in copied.items()})
            address = replace(self._address, url=_with_port(self._address.url, tunnel.port))
            folder = tunnel.folder
            layout = _Layout(
                folder=tunnel.home, task=f"{folder}/task.json", mcp=f"{folder}/mcp.json", answer=f"{folder}/answer"
            )
            for path, text in self._files(layout, address).items():
                await self._machine.aput_file(path, text.encode())
            variables = {**tunnel.variables, **self._variables(episode, layout, address)}
            inside = {file: f"{folder}/files/{Path(file).name}" for file in self._settings.files}
            command = [inside.get(word, word) for word in self._settings.command]
            await running.start(replace(self._spec(episode, layout, variables), command=command))
        except BaseException:
            await asyncio.shield(running.close())
            raise
        return running

    def _spec(
        self, episode: RolloutEpisode, layout: _Layout, variables: dict[str, str], remove: str = ""
    ) -> ProgramSpec:
        return ProgramSpec(
            command=self._settings.command,
            environment=variables,
            folder=layout.folder,
            stdin=f"{episode.question}\n",
            answer=layout.answer,
            remove=remove,
        )

    def _files(self, layout: _Layout, address: GatewayAddress) -> dict[str, str]:
        """Return the texts of the files that the program gets, by their paths."""
        server = {"type": "http", "url": address.mcp_url, "headers": {"Authorization": f"Bearer {address.key}"}}
        return {
            layout.task: json.dumps(self._task, ensure_ascii=False),
            layout.mcp: json.dumps({"mcpServers": {"environment": server}}),
        }

    def _variables(self, episode: RolloutEpisode, layout: _Layout, address: GatewayAddress) -> dict[str, str]:
        variables = {
            **gateway_variables(address, episode.model_name),
            "PARAGENT_TASK_FILE": layout.task,
            "PARAGENT_ANSWER_FILE": layout.answer,
            "PARAGENT_MCP_CONFIG": layout.mcp,
        }
        if self._settings.place != "machine":
            path = [self._settings.folder, *self._settings.python_path]
            variables |= {"PARAGENT_FOLDER": self._settings.folder, "PYTHONPATH": os.pathsep.join(path)}
        return {**variables, **self._settings.environment}


def _answer_in(report: ProgramReport) -> str:
    """Return the answer of a program that succeeded.

    Raises:
        ProgramFailed, MissingProgram: it did not succeed.
    """
    if report.exit_code is None and (problem := reported_problem(report.problem)) is not None:
        raise MissingProgram(SANDBOX_USER, f"bubblewrap does not work here ({problem})", SANDBOX_ADVICE)
    if report.problem or report.exit_code is None:
        raise ProgramFailed(f"the program {report.problem}")
    if report.exit_code != 0:
        errors = report.stderr.strip()
        last = errors.rpartition("\n")[2] or "it wrote nothing to stderr"
        end = f"\nThe end of its stderr:\n{errors[-_ERROR_CHARACTERS:]}" if "\n" in errors else ""
        raise ProgramFailed(f"the program {describe_exit(report.exit_code)}: {last[:_LINE_CHARACTERS]}{end}")
    return (report.stdout if report.answer is None else report.answer).strip()


async def check_sandbox() -> None:
    """Check that programs can run in the sandbox.

    Raises:
        MissingProgram: bubblewrap does not work here.
    """
    spec = ProgramSpec(command=["true"], environment={"PATH": "/usr/bin:/bin"}, folder=TMP, answer=f"{TMP}/answer")
    running = await start_in_sandbox(spec, SandboxFiles(), user=SANDBOX_USER, advice=SANDBOX_ADVICE)
    try:
        _answer_in(await running.wait())
    finally:
        await running.close()


def _with_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.hostname}:{port}").geturl()


def _readable(settings: ProgramSettings) -> list[str]:
    """Return what a program in the sandbox can read: its installation, those in PATH, and the current folder."""
    installed = installation_folders(settings.command[0])
    return [*SYSTEM_FILES, *installed, *path_folders(), settings.folder, *settings.python_path]


def _hidden_in(settings: ProgramSettings) -> list[str]:
    """Return the hidden files in the folders of the user that a program can read."""
    folders = (settings.folder, *settings.python_path)
    period = int(time.monotonic() / _HIDDEN_PERIOD)
    return [path for folder in folders for path in _hidden_entries(folder, settings.hidden, period)]


@functools.lru_cache(maxsize=16)
def _hidden_entries(folder: str, known: tuple[str, ...], period: int) -> list[str]:
    """Return the hidden files in a folder, which are searched again in the next period."""
    del period
    return hidden_entries(folder, known)

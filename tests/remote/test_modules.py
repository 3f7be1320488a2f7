"""Modules of a client's program on a server on another host, which gets their source from the client."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from paragent import RpcAgentServerLauncher

TEAM = """
from typing import Any

from paragent import AgentBase


class Part:
    def __init__(self, number: int) -> None:
        self.number = number


class Member(AgentBase):
    def version(self, part: Any = None) -> int:
        return {version}

    def helper(self) -> int:
        import helpers

        return helpers.NUMBER
"""
MAIN = """
import sys
import time
from pathlib import Path

from paragent import Result
from paragent.transport.address import Address

Address.is_local = property(lambda address: False)
from team import Member, Part

place = {{"host": "localhost", "port": {port}}}
def show(what):
    error = Result.of(what).exception(30)
    print(f"{{type(error).__name__}}: {{error}}" if error else Result.of(what).result(), flush=True)
"""


def run(folder: Path, version: int, server: RpcAgentServerLauncher, code: str) -> list[str]:
    """Run a program with its own version of the module `team`; return the lines that it prints."""
    folder.mkdir(exist_ok=True)
    (folder / "team.py").write_text(TEAM.format(version=version))
    (folder / "main.py").write_text(MAIN.format(port=server.port) + code)
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_another_version_of_a_loaded_module_is_an_error(tmp_path: Path, own_server: RpcAgentServerLauncher) -> None:
    code = "show(Member('m', to_dist=place).version())\nshow(Member('m', to_dist=place).version(Part(1)))\n"
    assert run(tmp_path / "one", 1, own_server, code) == ["1", "1"]
    assert run(tmp_path / "one", 1, own_server, code) == ["1", "1"]
    assert run(tmp_path / "copy", 1, own_server, code) == ["1", "1"]
    for folder in ("one", "two"):
        for line in run(tmp_path / folder, 2, own_server, code):
            assert line.startswith(
                "UsageError: this agent server has already loaded another version of the module 'team'"
            )
            assert line.endswith("restart the server, or use another server for each project")


def test_a_module_that_is_not_loaded_yet_may_be_replaced(tmp_path: Path, own_server: RpcAgentServerLauncher) -> None:
    unused = "(Path(__file__).parent / 'unused.py').write_text({text!r})\nshow(Member('m', to_dist=place).version())\n"
    assert run(tmp_path / "one", 1, own_server, unused.format(text="x = 1")) == ["1"]
    assert run(tmp_path / "one", 1, own_server, unused.format(text="x = 2")) == ["1"]


def test_a_call_fails_if_its_arguments_need_another_version(tmp_path: Path, own_server: RpcAgentServerLauncher) -> None:
    """The agent belongs to another program, so only the arguments of the second one need the module."""
    (tmp_path / "two").mkdir()
    code = (
        "import pickle\nagent = Member('m', to_dist=place)\nshow(agent.version())\nfile = Path('../agent.pickle')\n"
        "file.write_bytes(pickle.dumps(agent))\nimport subprocess\n"
        "print(subprocess.run([sys.executable, '../two/main.py'], capture_output=True, text=True, cwd='../two').stdout)\n"
        "show(agent.version(Part(1)))\n"
    )
    second = (
        "import pickle\nagent = pickle.loads(Path('../agent.pickle').read_bytes())\nshow(agent.version())\n"
        "show(agent.version(Part(1)))\n"
    )
    (tmp_path / "two" / "team.py").write_text(TEAM.format(version=2))
    (tmp_path / "two" / "main.py").write_text(MAIN.format(port=own_server.port) + second)
    lines = run(tmp_path / "one", 1, own_server, code)
    assert (lines[0], lines[1], lines[-1]) == ("1", "1", "1")
    assert lines[2].startswith("UsageError: this agent server has already loaded another version of the module 'team'")


def test_a_program_whose_files_are_edited_while_it_runs_goes_on(
    tmp_path: Path, own_server: RpcAgentServerLauncher
) -> None:
    code = (
        "agent = Member('m', to_dist=place)\nshow(agent.version(Part(1)))\n"
        "Path('team.py').write_text(Path('team.py').read_text() + '# edited')\nPath('helpers.py').write_text('NUMBER = 7')\n"
        "import helpers\nshow(agent.version(Part(1)))\nshow(agent.helper())\n"
        "import importlib, team\nimportlib.reload(team)\nimport colorsys\n"
        "show(team.Member('m', to_dist=place).version(team.Part(1)))\n"
    )
    lines = run(tmp_path / "one", 1, own_server, code)
    assert lines[:3] == ["1", "1", "7"]
    assert lines[3].startswith("UsageError: this agent server has already loaded another version of the module 'team'")

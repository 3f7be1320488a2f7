"""Attacks by programs in the sandbox: on the user's secrets, on other rollouts and on the host."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paragent.errors import ConfigError
from paragent.store import PendingRollout, RolloutStatus
from paragent.subprocesses.installations import installation_folders
from paragent.testing import OpenAIServer, Script
from tests.rollout.program_runs import TASK, USER_KEY, Project
from tests.waiting import wait_until_async

pytestmark = pytest.mark.slow

TRY = """
def attempt(action):
    try:
        return repr(action())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path / "project", monkeypatch)


def attack(project: Project, code: str, **settings: Any) -> Any:
    """Run code in the sandbox and return what it found: the value of its variable `found`, as JSON."""
    agent = project.python(f"{TRY}\n{code}\nopen(os.environ['PARAGENT_ANSWER_FILE'], 'w').write(json.dumps(found))")
    result = project.run(agent, **settings)
    assert result.status is RolloutStatus.COMPLETED, result.error
    return json.loads(result.answer or "")


def test_secrets_of_the_user_are_not_there(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = secrets.token_hex(16)
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id_ed25519").write_text(secret)
    deep = ("sub/.env", "packages/x/.git/config", "a/b/c/d/e/.netrc", "a/.hidden/f/g")
    for name in (".env", ".git/config", "results/run/journal.db", "tasks.jsonl", "cache/notes", *deep):
        project.write(name, secret)
    project.write("sub/visible.txt", "a file of the agent")
    project.write("web/node_modules/.bin/tool", "a tool of the agent")
    (project.folder / "sub/link").symlink_to(project.folder / "sub/.env")
    (project.folder / "sub/.link").symlink_to("/etc/shadow")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("MY_PASSWORD", secret)
    paths = [str(home / ".ssh/id_ed25519"), *(str(project.folder / one) for one in (".env", ".git/config"))]
    paths += [str(project.folder / one) for one in ("results/run/journal.db", "tasks.jsonl", "cache/notes", *deep)]
    paths += [
        str(project.folder / one) for one in ("sub/link", "sub/.link", "sub/visible.txt", "web/node_modules/.bin/tool")
    ]
    paths += ["/proc/1/environ", f"/proc/{os.getpid()}/environ", "/etc/shadow", "/var/run/docker.sock", "/root"]
    code = f"""
paths = {paths!r}
found = [attempt(lambda: os.listdir(one) if os.path.isdir(one) else open(one).read()) for one in paths]
found += [dict(os.environ), sorted(os.listdir("/proc")), attempt(lambda: open("/proc/self/mountinfo").read())]
for process in [one for one in os.listdir("/proc") if one.isdecimal()]:
    found.append(attempt(lambda: open(f"/proc/{{process}}/environ").read()))
"""
    agent = project.python(f"{TRY}\n{code}\nopen(os.environ['PARAGENT_ANSWER_FILE'], 'w').write(json.dumps(found))")
    with OpenAIServer(Script()) as server:
        worker = project.worker(agent, server, data="tasks.jsonl", cache=True, cache_dir="cache")
        result = worker.run(TASK)
    assert result.status is RolloutStatus.COMPLETED, result.error
    report = result.answer or ""
    assert secret not in report
    assert USER_KEY not in report
    assert "a file of the agent" in report
    assert "a tool of the agent" in report


def test_broad_folders_in_paths_are_not_shown(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "secret").write_text("secret")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{home}:{tmp_path}:/tmp:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    found = attack(
        project, f"found = [os.path.exists(one) for one in ({str(home / 'secret')!r}, {str(project.folder)!r})]"
    )
    assert found == [False, True]


def test_the_system_and_the_project_cannot_be_changed(project: Project) -> None:
    project.write("file", "unchanged")
    found = attack(
        project,
        f"""
paths = ({str(project.folder / "file")!r}, "/usr/bin/x", "/etc/x", "/x", sys.executable)
found = [attempt(lambda: open(one, "w")) for one in paths]
found.append([os.getuid() != 0, open("/proc/self/status").read().split("CapEff:")[1].split()[0]])
""",
    )
    *changes, (unprivileged, capabilities) = found
    assert all("Read-only" in one or "Permission" in one for one in changes), changes
    assert unprivileged
    assert int(capabilities, 16) == 0
    assert (project.folder / "file").read_text() == "unchanged"


def test_only_the_gateway_can_be_reached(project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, OpenAIServer(Script()) as other:
        ports = [listener.getsockname()[1], int(other.url.split(":")[2].split("/")[0])]
        found = attack(
            project,
            f"""
import socket
def connect(address):
    socket.create_connection(address, 3).close()
    return "connected"
gateway = int(os.environ["OPENAI_BASE_URL"].split(":")[2].split("/")[0])
found = [attempt(lambda: connect(("127.0.0.1", port))) for port in (gateway, *{ports!r})]
found += [attempt(lambda: connect(("1.1.1.1", 80))), attempt(lambda: socket.gethostbyname("example.com"))]
""",
        )
    assert found[0] == "'connected'"
    assert not any("connected" in one for one in found[1:])


def test_the_network_of_the_host_can_be_allowed(project: Project) -> None:
    with OpenAIServer(Script()) as other:
        code = f"found = attempt(lambda: urllib.request.urlopen({other.url + '/models'!r}).status)"
        assert attack(project, code, agent_network="host") == "200"
        names = "found = open('/etc/resolv.conf').read()"
        assert attack(project, names, agent_network="host") == Path("/etc/resolv.conf").read_text()
        assert attack(project, f"{code}\nask([{{'role': 'user', 'content': 'x'}}])", agent_network="none") != "200"


def test_another_rollout_cannot_be_called(project: Project) -> None:
    """Two rollouts of one worker: one waits, the other tries its address with its own key, and with none."""
    agent = project.python(
        f"""{TRY}
import urllib.error
address, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
if "first" in sys.stdin.read():
    import time
    calls = 1
    while ask([{{"role": "user", "content": address}}])["content"] != "done":
        time.sleep(0.2)
        calls += 1
    print(calls)
else:
    victim = ask([{{"role": "user", "content": "tell"}}])["content"]
    statuses = []
    for headers in ({{"Authorization": f"Bearer {{key}}"}}, {{}}, {{"x-api-key": key}}):
        request = urllib.request.Request(victim + "/chat/completions", b"{{}}", headers)
        try:
            statuses.append(urllib.request.urlopen(request).status)
        except urllib.error.HTTPError as error:
            statuses.append(error.code)
    print(statuses)
"""
    )

    async def scenario(server: OpenAIServer, script: Script) -> list[Any]:
        worker = project.worker(agent, server, max_turns=1000)
        tasks = [type(TASK)(name, f"the {name} task", "42") for name in ("first", "second")]
        first = asyncio.create_task(worker(PendingRollout(tasks[0], 1)))
        while not server.seen.bodies:
            await asyncio.sleep(0.02)
        script.default = server.seen.bodies[0]["messages"][0]["content"]
        second = await worker(PendingRollout(tasks[1], 1))
        script.default = "done"
        return [second, await first]

    script = Script(default="42")
    with OpenAIServer(script, keep_requests=True) as server:
        second, first = asyncio.run(scenario(server, script))
    assert (second.answer, first.answer) == ("[401, 401, 401]", str(first.turns)), "only its own calls are turns"


def test_daemons_end_with_the_program(project: Project) -> None:
    word = f"{secrets.randbelow(10**6) + 10**6}.25"
    attack(
        project,
        f"""
import subprocess
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "{word}"])
    os._exit(0)
os.wait()
subprocess.Popen(["setsid", "sleep", "{word}"])
found = None
""",
    )
    running = [file for file in Path("/proc").glob("[0-9]*/cmdline") if word.encode() in _read(file)]
    assert not running


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def test_a_full_disk_is_the_programs_own(project: Project) -> None:
    found = attack(
        project,
        """
def fill():
    for number in range(40):
        with open(f"/tmp/{number}", "wb") as file:
            for _ in range(100): file.write(b"x" * (1 << 20))
try:
    found = attempt(fill)
finally:
    for name in os.listdir("/tmp"):
        if name.isdecimal(): os.unlink(f"/tmp/{name}")
""",
    )
    assert "No space left" in found


def test_processes_are_limited(project: Project) -> None:
    agent = project.python(
        "children = []\nwhile True:\n    pid = os.fork()\n    if pid == 0:\n        import time; time.sleep(600)\n"
    )
    result = project.run(agent)
    assert (result.status, result.kind) == (RolloutStatus.FAILED, "exit code")
    assert "Resource temporarily unavailable" in result.error or "more than 512 processes" in result.error


@pytest.mark.parametrize(
    "answer",
    [
        "os.mkfifo(path)",
        "os.mkdir(path)",
        "os.symlink('/proc/self/environ', path)",
        "os.symlink('/dev/zero', path)",
        "os.symlink('/nowhere', path)",
        "open(path, 'wb').write(bytes(range(256)))",
    ],
)
def test_a_strange_answer_file_does_no_harm(project: Project, answer: str) -> None:
    agent = project.python(f"path = os.environ['PARAGENT_ANSWER_FILE']\n{answer}\nprint('from stdout')")
    result = project.run(agent)
    assert result.status is RolloutStatus.COMPLETED
    assert USER_KEY not in (result.answer or "")


def test_a_program_that_kills_its_supervisor_fails(project: Project) -> None:
    agent = project.python(
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\n"
        "for name in os.listdir('/proc'):\n"
        "    if name.isdecimal() and int(name) != os.getpid():\n"
        "        try: os.kill(int(name), 9)\n"
        "        except OSError: pass\n"
        "time.sleep(1)\nprint('survived')"
    )
    result = project.run(agent)
    assert result.kind in {"exit code", ""}
    if os.geteuid() == 0:
        assert result.answer == "survived", "the supervisor has another user"


def test_a_sandbox_that_is_killed_from_outside_is_not_the_fault_of_the_agent(project: Project) -> None:
    """As by the kernel, when the host has no memory left."""
    agent = project.python("""print(ask([{"role": "user", "content": "?"}])["content"])""")

    async def kill(server: OpenAIServer) -> Any:
        running = asyncio.create_task(project.worker(agent, server)(PendingRollout(TASK, 1)))
        await wait_until_async(lambda: server.seen.requests == 1, what="a call of the program")
        listed = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
        [sandbox] = [pid for pid in " ".join(listed).split() if Path(f"/proc/{pid}/comm").read_text() == "bwrap\n"]
        os.kill(int(sandbox), signal.SIGKILL)
        return await running

    with OpenAIServer(Script(default="42", latency=30)) as server:
        result = asyncio.run(kill(server))
    assert (result.status, result.kind) == (RolloutStatus.INFRASTRUCTURE, "environment")
    assert "was killed from outside" in result.error


def test_a_program_that_cannot_be_started_is_not_the_fault_of_the_agent(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = project.python("print(42)")

    async def fail(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with OpenAIServer(Script()) as server:
        worker = project.worker(agent, server)
        monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
        result = worker.run(TASK)
    assert (result.status, result.kind) == (RolloutStatus.INFRASTRUCTURE, "environment")
    assert "cannot start the program" in result.error


# --- what is shown ------------------------------------------------------------------------------------------------------


def test_installations_are_shown_and_nothing_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    for name in (
        "tools/bin/agent",
        ".cargo/bin/agent",
        ".nvm/node/lib/node_modules/pkg/dist/cli.js",
        ".pyenv/shims/python",
    ):
        path = home / name
        path.parent.mkdir(parents=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    link = home / ".nvm/node/bin/agent"
    link.parent.mkdir()
    link.symlink_to("../lib/node_modules/pkg/dist/cli.js")

    def shown(name: str) -> set[str]:
        return {one for one in installation_folders(str(home / name)) if one.startswith(str(tmp_path))}

    single = home / "agent"
    single.write_text("#!/bin/sh\n")
    assert shown("agent") == {str(single)}, "not the whole home folder"
    assert shown("tools/bin/agent") == {str(home / "tools")}
    assert shown(".cargo/bin/agent") == {str(home / ".cargo/bin")}, "credentials are in .cargo"
    assert shown(".nvm/node/bin/agent") == {str(home / ".nvm/node"), str(home / ".nvm/node/lib/node_modules")}
    assert shown(".pyenv/shims/python") == {str(home / ".pyenv")}


def test_an_environment_of_python_is_shown_with_its_base() -> None:
    found = installation_folders(sys.executable)
    assert {sys.prefix, sys.base_prefix} <= set(found)


@pytest.mark.parametrize("place", [".venv", "tools/.venv", "../venv"])
def test_an_environment_of_the_project_can_be_used(project: Project, place: str) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", project.folder / place], check=True, timeout=100)
    project.write("my_agent.py", "import sys; print(sys.prefix)")
    result = project.run(f"cmd: {place}/bin/python my_agent.py")
    assert (result.status, result.error) == (RolloutStatus.COMPLETED, "")
    assert result.answer == os.path.normpath(project.folder / place)


def test_a_folder_in_which_hidden_files_cannot_be_found_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        project.write(f"sub/.{number}", "")
    agent = project.python("print(42)")
    monkeypatch.setattr("paragent.subprocesses.installations._MOST_HIDDEN", 20)
    with pytest.raises(ConfigError, match="more than 20 hidden files: start the run in a smaller folder"):
        project.run(agent)
    monkeypatch.setattr("paragent.subprocesses.installations._MOST_ENTRIES", 20)
    with pytest.raises(ConfigError, match="more than 20 files"):
        project.run(agent)
    assert project.run(agent, agent_in="host").answer == "42"


def test_many_hidden_files_are_hidden(project: Project) -> None:
    for number in range(450):
        project.write(f"sub/{number}/.env", "secret")
    code = "paths = [f\"{os.environ['PARAGENT_FOLDER']}/sub/{number}/.env\" for number in range(450)]"
    agent = project.python(
        f"{TRY}\n{code}\nprint(sum('secret' in attempt(lambda: open(path).read()) for path in paths))"
    )
    assert project.run(agent).answer == "0"

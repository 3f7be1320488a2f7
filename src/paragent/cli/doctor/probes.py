"""The probes: each checks one thing on this host, with a time limit, and returns a `Finding`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.agents import AgentBase
from paragent.cli.doctor.cures import as_root
from paragent.cli.doctor.findings import PROGRAM_LIMIT, Finding, check_extra, check_program, program_version
from paragent.errors import ConfigError, MissingExtra, MissingProgram, ParagentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["EXTRA", "PROBES", "run_probes"]

EXTRA = "extra "
"""The beginning of the name of a probe for the packages of an extra."""
_LIMIT = 20.0
"""Seconds for all probes together, which run at the same time."""
_BOOT_LIMIT = 3.0
"""Seconds for a machine that only ends itself. With KVM it takes 0.1; where KVM is itself emulated, more than 4."""
_OLDEST_JAVA = 17
_NAMESPACE_SETTINGS = {
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
    "user.max_user_namespaces": ("0", "15000"),
}
"""Settings of Linux that forbid the namespaces that bubblewrap needs: the value that forbids them, and one that does not."""


def run_probes(names: Iterable[str], limit: float = _LIMIT) -> dict[str, Finding]:
    """Run probes at the same time and return their findings; what takes longer than `limit` seconds does not work."""
    wanted = dict.fromkeys(names)
    found: dict[str, Finding] = {}

    def run(name: str) -> None:
        found[name] = _guarded(name)

    threads = {name: threading.Thread(target=run, args=[name], daemon=True) for name in wanted}
    end = time.monotonic() + limit
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, end - time.monotonic()))
    late = {name: Finding(subject=name, works=False, detail=f"{name} did not answer in time") for name in wanted}
    return {name: found.get(name, late[name]) for name in wanted}


def _guarded(name: str) -> Finding:
    """Run a probe; an error becomes a finding."""
    probe = functools.partial(check_extra, name.removeprefix(EXTRA)) if name.startswith(EXTRA) else PROBES[name]
    try:
        return probe()
    except MissingExtra as error:
        return Finding(
            subject=name, works=False, detail=f"{error.missing} is not installed", extras=tuple(error.extra.split(","))
        )
    except MissingProgram as error:
        return Finding(subject=name, works=False, detail=error.problem, cure=error.advice)
    except subprocess.TimeoutExpired as error:
        return Finding(subject=name, works=False, detail=f"{error.cmd[0]} did not answer within {error.timeout:g} s")
    except Exception as error:  # noqa: BLE001 - a broken package may raise anything; the other probes go on
        known = isinstance(error, ParagentError | OSError)
        detail = str(error) if known and str(error) else f"{type(error).__name__}: {error}"
        return Finding(subject=name, works=False, detail=detail)


# --- tasks, remote agents and sandboxes -------------------------------------------------------------------------------


def _echo(value: Any) -> Any:
    return value


def _worker() -> Finding:
    from paragent.config import RunConfig
    from paragent.runners import Runners

    began = time.monotonic()
    response = Runners.sync_run("ready", _echo, RunConfig(worker_num=1, timeout=PROGRAM_LIMIT))
    if not response.success:
        return Finding(subject="worker", works=False, detail=f"a worker process does not work: {response.msg}")
    return Finding(
        subject="worker", works=True, detail=f"a worker process answered in {time.monotonic() - began:.1f} s"
    )


class _Echo(AgentBase):
    def reply(self, x: Any = None) -> Any:
        return x


def _remote_agent() -> Finding:
    began = time.monotonic()
    agent: Any = _Echo("echo", to_dist=True)
    try:
        agent.reply("ready").result(PROGRAM_LIMIT)
    finally:
        agent.stop()
    return Finding(
        subject="remote agent",
        works=True,
        detail=f"an agent in a child process answered in {time.monotonic() - began:.1f} s",
    )


def _sandbox_of_programs() -> Finding:
    from paragent.rollout.program import check_sandbox

    return _sandbox(check_sandbox)


def _sandbox_of_py() -> Finding:
    from paragent.envs import open_environment

    async def check() -> None:
        environment = open_environment("py")
        try:
            await environment.check()
        finally:
            await environment.close()

    return _sandbox(check)


def _sandbox(check: Callable[[], Any]) -> Finding:
    """Run a check that starts a process with bubblewrap."""
    if shutil.which("bwrap") is None:
        detail = "bubblewrap (bwrap) is not installed"
        return Finding(subject="bubblewrap", works=False, detail=detail, programs=("bwrap",))

    async def limited() -> None:
        async with asyncio.timeout(PROGRAM_LIMIT):
            await check()

    try:
        asyncio.run(limited())
    except MissingProgram as error:
        cure = _namespace_cure() or error.advice
        return Finding(subject="bubblewrap", works=False, detail=error.problem, cure=cure)
    except TimeoutError:
        detail = f"bubblewrap did not start a process within {PROGRAM_LIMIT:g} s"
        return Finding(subject="bubblewrap", works=False, detail=detail)
    return Finding(subject="bubblewrap", works=True, detail=f"bubblewrap {program_version('bwrap', '--version')}")


def _namespace_cure() -> str:
    """Return the command that changes the setting of Linux that forbids namespaces to users; empty if there is none."""
    for setting, (forbids, allows) in _NAMESPACE_SETTINGS.items():
        path = Path("/proc/sys") / setting.replace(".", "/")
        if path.exists() and path.read_text().strip() == forbids:
            return as_root(f"sysctl -w {setting}={allows}")
    return ""


def _chromium() -> Finding:
    from paragent.envs.web.chromium import find_chromium

    try:
        path = find_chromium()
    except MissingProgram as error:
        return Finding(subject="Chromium", works=False, detail=error.problem, programs=("chromium",))
    return Finding(subject="Chromium", works=True, detail=f"Chromium {program_version(path, '--version')}")


# --- models -----------------------------------------------------------------------------------------------------------


def _key(api: str) -> Finding:
    """Return whether there is a key for a model's endpoint, and where it was found. The key itself is never shown."""
    from paragent.models.credentials import check_address, endpoint_from_environment, shown_address, variables

    address, name = variables(api)
    try:
        url, key = endpoint_from_environment(Path.cwd(), api)
    except ConfigError:  # its message has the address, which may have a password
        detail = f"{name} and {address} are set in different places"
        cure = "set both in the environment, or both in the file .env"
        return Finding(subject=name, works=False, detail=detail, cure=cure)
    if not key:
        detail = f"{name} is set neither in the environment nor in a file .env of this folder"
        return Finding(subject=name, works=False, detail=detail, cure=f"export {name}=...")
    place = "the environment" if os.environ.get(name) else "the file .env"
    if url is not None:
        try:
            check_address(shown_address(url), address)
        except ConfigError as error:
            return Finding(subject=name, works=False, detail=str(error), cure=f"change {address} in {place}")
    detail = f"{name} is set in {place}, for {shown_address(url or '')}"
    return Finding(subject=name, works=True, detail=detail)


# --- machines ---------------------------------------------------------------------------------------------------------


def _kvm() -> Finding:
    from paragent.machines.kvm import boot_problem, kvm_problem

    problem, cure = kvm_problem(), ""
    if problem.startswith("you may not use"):
        cure = "sudo usermod -aG kvm $USER   # then log in again"
    program = shutil.which("qemu-system-x86_64")
    if not problem and program is not None:
        problem = boot_problem(program, "kvm", _BOOT_LIMIT)
    if problem:
        detail = f"no KVM, so machines are emulated, which is several times slower: {problem}"
        return Finding(subject="KVM", works=False, detail=detail, cure=cure)
    return Finding(subject="KVM", works=True, detail="KVM works" if program else "KVM is likely to work")


def _network() -> Finding:
    """Return whether machines can have internet access without access to this host."""
    missing = [name for name in ("slirp4netns", "unshare", "setpriv", "ip") if check_program(name, name).programs]
    if missing:
        detail = f"not installed, for the network of machines: {', '.join(missing)}"
        return Finding(subject="network", works=False, detail=detail, programs=tuple(missing))
    if check_extra("qemu").works:  # otherwise the provider cannot be imported, which another probe reports
        from paragent.machines.providers.qemu.network import NetworkNamespace

        NetworkNamespace.check()
    return Finding(subject="network", works=True, detail="")


def _image() -> Finding:
    """Return whether the image of desktops is built, or can be built when it is first used."""
    from paragent.machines.images import frozen_states, images

    build = "paragent vm build desktop --freeze"
    if "desktop" in {image.name for image in images()}:
        frozen = "desktop" in {state.image for state in frozen_states()}
        text = "image desktop is built" if frozen else f"image desktop is built; the first run boots it once: {build}"
        return Finding(subject="image", works=True, detail=text)
    missing = [name for name in ("mmdebstrap", "mke2fs", "debugfs") if check_program(name, name).programs]
    if shutil.which("apt-cache") is None:
        detail = "the image desktop is not built, and only Debian and Ubuntu can build it"
        return Finding(subject="image", works=False, detail=detail, cure="name an image of your own with --path-to-vm")
    if missing:
        detail = f"the image desktop is not built; not installed, to build it: {', '.join(missing)}"
        return Finding(subject="image", works=False, detail=detail, programs=tuple(missing), cure=build)
    return Finding(subject="image", works=True, detail=f"the first run builds the image, in minutes: {build}")


def _desktop() -> Finding:
    from paragent.machines.providers.process import DESKTOP_PROGRAMS

    if missing := [name for name in DESKTOP_PROGRAMS if check_program(name, name).programs]:
        detail = f"not installed: {', '.join(missing)}"
        return Finding(subject="desktop", works=False, detail=detail, programs=tuple(missing))
    return Finding(subject="desktop", works=True, detail="Xvfb and openbox; not isolated from this host")


def _docker() -> Finding:
    if (packages := check_extra("docker")).extras:
        return packages
    import docker

    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    try:
        if address.startswith("unix://"):  # the SDK does not close a socket that it cannot connect
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(PROGRAM_LIMIT)
                connection.connect(address.removeprefix("unix://"))
        with contextlib.closing(docker.from_env(timeout=int(PROGRAM_LIMIT))) as client:
            version = client.version()["Version"]
    except PermissionError:
        detail, cure = "you may not use the Docker engine", "sudo usermod -aG docker $USER   # then log in again"
        return Finding(subject="docker", works=False, detail=detail, cure=cure)
    except (OSError, docker.errors.DockerException):
        detail = f"the Docker engine does not answer at {address}"
        if shutil.which("docker") is None:
            return Finding(subject="docker", works=False, detail=detail, programs=("docker",))
        return Finding(subject="docker", works=False, detail=detail, cure=as_root("systemctl start docker"))
    return Finding(subject="docker", works=True, detail=f"Docker engine {version}")


def _aws_credentials() -> Finding:
    names = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE")
    if any(os.environ.get(name) for name in names):
        return Finding(subject="credentials", works=True, detail="credentials in the environment")
    home = Path("~/.aws").expanduser()
    if (home / "credentials").exists() or (home / "config").exists():
        return Finding(subject="credentials", works=True, detail=f"credentials in {home}")
    detail = "no credentials in the environment or in ~/.aws; on EC2 the role of the instance is used"
    return Finding(subject="credentials", works=False, detail=detail, cure="aws configure")


def _vmrun() -> Finding:
    found = check_program("VMware", "vmrun")
    return found if found.works else replace(found, programs=(), cure="install VMware Workstation, which has vmrun")


# --- engines and the view ---------------------------------------------------------------------------------------------


def _engine(name: str, package: str, subject: str) -> Finding:
    from paragent.config import RunConfig
    from paragent.engines import open_engine

    if (packages := check_extra(name)).extras:
        return packages
    open_engine(RunConfig(engine_name=name)).close()  # checks that it can be used, and starts nothing
    return Finding(subject=subject, works=True, detail=f"{subject} {metadata.version(package)}")


def _java() -> Finding:
    from paragent.engines.spark import require_java
    from paragent.errors import EngineFailed

    try:
        require_java()
    except EngineFailed:
        detail = f"there is no Java {_OLDEST_JAVA} or later in JAVA_HOME or PATH"
        return Finding(subject="Java", works=False, detail=detail, programs=("java",))
    home = Path(os.environ.get("JAVA_HOME") or "/nowhere") / "bin/java"
    version = program_version(str(home) if home.exists() else "java", "-version")
    numbers = [int(part) for part in re.findall(r"\d+", version)] or [_OLDEST_JAVA]
    release = numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]  # Java 8 calls itself 1.8
    if release < _OLDEST_JAVA:
        detail = f"Java {version} is too old for Spark, which needs {_OLDEST_JAVA} or later"
        return Finding(subject="Java", works=False, detail=detail, programs=("java",))
    return Finding(subject="Java", works=True, detail=f"Java {version}")


def _view() -> Finding:
    if (packages := check_extra("view")).extras:
        return packages
    from paragent.cli.view import check_installed

    check_installed()
    return Finding(subject="view", works=True, detail="the pages are built")


PROBES: dict[str, Callable[[], Finding]] = {
    "worker": _worker,
    "remote agent": _remote_agent,
    "sandbox of programs": _sandbox_of_programs,
    "sandbox of py": _sandbox_of_py,
    "Chromium": _chromium,
    "key": functools.partial(_key, "chat"),
    "key of Anthropic": functools.partial(_key, "anthropic"),
    "KVM": _kvm,
    "QEMU": functools.partial(check_program, "QEMU", "qemu-system-x86_64", "--version"),
    "qemu-img": functools.partial(check_program, "qemu-img", "qemu-img"),
    "network": _network,
    "image": _image,
    "desktop": _desktop,
    "docker": _docker,
    "AWS credentials": _aws_credentials,
    "vmrun": _vmrun,
    "VBoxManage": functools.partial(check_program, "VirtualBox", "VBoxManage", "--version"),
    "Ray": functools.partial(_engine, "ray", "ray", "Ray"),
    "Spark": functools.partial(_engine, "spark", "pyspark", "Spark"),
    "Java": _java,
    "view": _view,
}

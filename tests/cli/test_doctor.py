"""`paragent doctor`: findings, cures, limits and exit status."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paragent._installation import install_command
from paragent.cli import main
from paragent.cli.doctor import purpose_names
from paragent.cli.doctor.cures import install_programs, known_to_apt, missing_packages, user_extras
from paragent.cli.doctor.findings import Finding
from paragent.cli.doctor.host import describe_host
from paragent.cli.doctor.probes import PROBES, run_probes
from paragent.cli.doctor.purposes import GROUPS, PURPOSES, judge, probes_of

SECRET = "sk-never-shown"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder, without keys."""
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are found."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    known_to_apt.cache_clear()
    return folder


def script(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def found(name: str) -> Finding:
    return run_probes([name])[name]


# --- the command ------------------------------------------------------------------------------------------------------


def test_tasks_are_ready(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "tasks"]) == 0
    assert "a worker process answered" in capsys.readouterr().out


def test_remote_agents_are_ready(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "remote-agents"]) == 0
    assert "an agent in a child process answered" in capsys.readouterr().out


@pytest.mark.slow
def test_all_purposes_are_shown_with_state_and_fix(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for title in GROUPS.values():
        assert title in lines
    for name in PURPOSES:
        assert any(line.split()[:2] in ([name, "ready"], [name, "not"]) for line in lines), name


@pytest.mark.slow
def test_json_has_everything_but_keys(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://user:{SECRET}@127.0.0.1:9/v1?key={SECRET}")
    Path(".env").write_text(f"ANTHROPIC_API_KEY={SECRET}\n")
    assert main(["doctor", "--json"]) == 0
    text = capsys.readouterr().out
    assert SECRET not in text
    report = json.loads(text)
    assert report["ready"] is True
    assert report["purposes"].keys() == PURPOSES.keys()
    assert report["host"]["usable_cores"] >= 1
    assert {"ray", "rollout", "view"} <= report["extras"].keys()
    [key] = [one for one in report["purposes"]["model"]["findings"] if one["subject"] == "OPENAI_API_KEY"]
    assert key["works"]
    assert key["detail"] == "OPENAI_API_KEY is set in the environment, for http://127.0.0.1:9/v1"
    [key] = [one for one in report["purposes"]["anthropic"]["findings"] if one["subject"] == "ANTHROPIC_API_KEY"]
    assert key["detail"] == "ANTHROPIC_API_KEY is set in the file .env, for https://api.anthropic.com"


def test_names_select_and_decide_the_status(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "parquet", "vmware"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line[2] != " "] == ["vmware", "parquet"]
    assert main(["doctor", "parquet"]) == 0


def test_a_group_means_all_its_purposes_and_a_purpose_only_itself(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "clusters", "--json"])
    assert json.loads(capsys.readouterr().out)["purposes"].keys() == {"ray", "spark"}
    main(["doctor", "own-agents", "--json"])
    assert json.loads(capsys.readouterr().out)["purposes"].keys() == {"own-agents"}


def test_an_unknown_name_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "rayy"]) == 2
    assert "there is no subject called 'rayy'" in capsys.readouterr().err


def test_the_status_without_names_depends_on_tasks_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PROBES:
        monkeypatch.setitem(PROBES, name, lambda: Finding(subject="x", works=False, detail="broken"))
    assert main(["doctor"]) == 1
    assert "Tasks cannot run on this host" in capsys.readouterr().out
    monkeypatch.setitem(PROBES, "worker", lambda: Finding(subject="worker", works=True, detail="fine"))
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "not ready" in shown
    assert re.search(
        r"Ready to use: tasks, [^.]*\. The others are optional; see the fixes above\.", " ".join(shown.split())
    )


@pytest.mark.slow
def test_only_the_core_packages_are_needed() -> None:
    optional = [
        *("aiohttp", "anthropic", "bm25s", "boto3", "docker", "mcp", "numpy", "openai", "opentelemetry", "PIL"),
        *("playwright", "pyarrow", "pyspark", "qemu", "ray", "starlette", "sympy", "uvicorn", "yaml"),
    ]
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({optional}, None))\n"
        "from paragent.cli import main; sys.exit(main(['doctor']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


# --- probes -----------------------------------------------------------------------------------------------------------


def test_an_error_in_a_probe_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Finding:
        raise KeyError("surprise")

    monkeypatch.setitem(PROBES, "Java", broken)
    assert found("Java") == Finding(subject="Java", works=False, detail="KeyError: 'surprise'")


def test_a_probe_that_hangs_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang() -> Finding:
        release.wait(60)
        return Finding(subject="Java", works=True, detail="too late")

    monkeypatch.setitem(PROBES, "Java", hang)
    findings = run_probes(["Java", "extra parquet"], limit=0.2)
    release.set()  # the thread ends
    assert findings["Java"].detail == "Java did not answer in time"
    assert findings["extra parquet"].works


def test_a_program_that_hangs_is_ended_with_its_children(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paragent.cli.doctor.findings.PROGRAM_LIMIT", 0.2)
    script(programs, "chromium", "/bin/sleep 1000")
    finding = found("Chromium")  # reads until the end of the pipe, which the child of the program holds, too
    assert not finding.works
    assert "did not answer within 0.2 s" in finding.detail


@pytest.mark.parametrize(
    ("printed", "works"),
    [
        ('openjdk version "21.0.5" 2024-10-15', True),
        ('openjdk version "11.0.2" 2019-01-15', False),
        ('java version "1.8.0_392"', False),
    ],
)
def test_java_must_be_new_enough(printed: str, works: bool, programs: Path) -> None:
    script(programs, "java", f"echo '{printed}' >&2")
    finding = found("Java")
    assert finding.works is works
    assert finding.programs == (() if works else ("java",))


def test_a_program_that_fails_does_not_work(programs: Path) -> None:
    script(programs, "chromium", "echo 'cannot open display' >&2; exit 3")
    assert "does not work: cannot open display" in found("Chromium").detail


@pytest.mark.parametrize("probe", ["sandbox of py", "sandbox of programs"])
def test_bubblewrap_is_started_once(probe: str, programs: Path) -> None:
    assert found(probe).programs == ("bwrap",)
    script(programs, "bwrap", "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    finding = found(probe)
    assert not finding.works
    assert "No permissions to create new namespace" in finding.detail
    assert "namespaces" in finding.cure or finding.cure.startswith(("sysctl", "sudo sysctl"))


def test_a_docker_engine_that_does_not_answer(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///absent.sock")
    assert found("docker").programs == ("docker",)
    script(programs, "docker", "true")
    assert found("docker").cure.endswith("systemctl start docker")


def test_key_and_address_of_different_places(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text(f"OPENAI_BASE_URL=http://user:{SECRET}@host/v1\n")
    assert "neither in the environment" in found("key").detail
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    assert found("key").detail == "OPENAI_API_KEY and OPENAI_BASE_URL are set in different places"
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:8000")
    assert "begins with http://" in found("key").detail


def test_a_broken_env_file_is_a_finding() -> None:
    Path(".env").write_bytes(b"OPENAI_API_KEY=\xff\xfe\n")
    finding = found("key")
    assert not finding.works
    assert "decode" in finding.detail


# --- purposes ---------------------------------------------------------------------------------------------------------


def test_every_probe_is_used_and_every_extra_belongs_to_a_purpose() -> None:
    used = set(probes_of(PURPOSES.values()))
    assert PROBES.keys() <= used
    by_probes = {"docker": "docker", "ray": "Ray", "spark": "Spark", "view": "view"}
    others = {"demo", "inspect", "osworld-pymupdf"}  # other extras, and packages that few hosts need
    for extra in user_extras().keys() - others:
        assert f"extra {extra}" in used or by_probes[extra] in used, extra
    assert len(purpose_names()) == len(set(purpose_names()))


def test_osworld_needs_one_kind_of_machines() -> None:
    fine = {name: Finding(subject=name, works=True, detail="") for name in probes_of([PURPOSES["osworld"]])}
    assert judge(PURPOSES["osworld"], fine).chosen == "qemu"
    without = fine | {"QEMU": replace(fine["QEMU"], works=False, programs=("qemu-system-x86_64",))}
    assert judge(PURPOSES["osworld"], without).chosen == "desktop"
    neither = without | {"desktop": replace(fine["desktop"], works=False, programs=("Xvfb",))}
    result = judge(PURPOSES["osworld"], neither)
    assert not result.ready
    assert "qemu" in result.cure


def test_what_is_useful_may_be_missing() -> None:
    fine = {name: Finding(subject=name, works=True, detail="") for name in probes_of([PURPOSES["qemu"]])}
    slow = fine | {"KVM": Finding(subject="KVM", works=False, detail="no KVM")}
    assert judge(PURPOSES["qemu"], slow).ready


def test_one_command_cures_everything(programs: Path) -> None:
    script(programs, "dnf", "true")
    missing = {
        "extra web": Finding(subject="web", works=False, detail="no packages", extras=("web",)),
        "Chromium": Finding(subject="Chromium", works=False, detail="no Chromium", programs=("chromium",)),
    }
    cure = judge(PURPOSES["web"], missing).cure
    assert cure.removeprefix("sudo ") == f"dnf install -y chromium && {install_command(['web'])}"


# --- cures ------------------------------------------------------------------------------------------------------------

KNOWN_TO_APT = r"""
for name in "$@"; do
    case $name in
        bubblewrap|openjdk-21-jre-headless) printf '%s:\n  Installed: (none)\n  Candidate: 1.0\n' "$name" ;;
    esac
done
"""


@pytest.mark.parametrize(
    ("managers", "wanted", "command"),
    [
        ({"apt-get": "", "apt-cache": KNOWN_TO_APT}, ["bwrap"], "apt-get install -y bubblewrap"),
        ({"apt-get": "", "apt-cache": KNOWN_TO_APT}, ["java"], "apt-get install -y openjdk-21-jre-headless"),
        ({"apt-get": "", "apt-cache": KNOWN_TO_APT}, ["VBoxManage"], "install VBoxManage"),
        ({"apt-get": "", "apt-cache": "true"}, ["bwrap"], "apt-get update && apt-get install -y bubblewrap"),
        ({"dnf": ""}, ["qemu-img", "ip"], "dnf install -y iproute qemu-img"),
        ({"pacman": ""}, ["Xvfb"], "pacman -S --noconfirm xorg-server-xvfb"),
        ({}, ["Xvfb", "bwrap"], "install Xvfb, bwrap"),
    ],
)
@pytest.mark.parametrize("user", [0, 1000])
def test_programs_are_installed_with_the_package_manager_of_the_host(
    managers: dict[str, str],
    wanted: list[str],
    command: str,
    user: int,
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, body in managers.items():
        script(programs, name, body)
    monkeypatch.setattr("os.geteuid", lambda: user)
    sudo = "sudo " if user and managers else ""
    expected = " && ".join(step if step.startswith("install") else sudo + step for step in command.split(" && "))
    assert install_programs(wanted) == expected


def test_an_apt_that_hangs_is_not_waited_for(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paragent.cli.doctor.cures._APT_LIMIT", 0.1)
    script(programs, "apt-get", "")
    script(programs, "apt-cache", "exec /bin/sleep 3")
    assert "apt-get install -y bubblewrap" in install_programs(["bwrap"])


def test_packages_are_missing_or_too_old() -> None:
    wanted = ["pytest>=1.0", "pytest[dev] >=9999", "no-such-package>=1", "rich"]
    old, missing = missing_packages(wanted)
    assert old.startswith("pytest>=9999 (")
    assert missing == "no-such-package"


def test_an_extra_contains_the_packages_of_the_extras_that_it_includes() -> None:
    extras = user_extras()
    assert set(extras["rollout"]) < set(extras["training"])
    assert "dev" not in extras


# --- host -------------------------------------------------------------------------------------------------------------


def test_the_host_has_notes_on_what_may_be_a_problem() -> None:
    settings: dict[str, Any] = {"free_disk": 10**10, "free_cache_disk": 10**10, "writable": True, "cgroup_memory": None}
    host = replace(describe_host(), cores=64, usable_cores=16, cgroup_cores=None, memory=None, **settings)
    assert host.notes() == []
    assert "16 cores of 64" in host.lines()[0]
    limited = replace(host, cgroup_cores=2.0, free_disk=1000, free_cache_disk=None, writable=False, cgroup_memory=10**9)
    for note, part in zip(limited.notes(), ("--output-dir", "PARAGENT_CACHE", "little"), strict=True):
        assert part in note
    assert "a cgroup allows 1.0 GB" in limited.lines()[0]

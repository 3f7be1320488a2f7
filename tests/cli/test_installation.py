"""Messages that name an extra print the command for the way in which paragent was installed."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import paragent
from paragent._installation import install_command
from paragent.errors import MissingExtra

ROOT = Path(__file__).parents[2]
VERSION = "0.2.0"
PRINT_COMMAND = "from paragent import MissingExtra; print(MissingExtra('this', 'ray', 'ray').command)"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the package, as in `site-packages`."""
    folder = tmp_path_factory.mktemp("site-packages")
    hidden = shutil.ignore_patterns("__pycache__", "bundle")
    shutil.copytree(Path(paragent.__file__).parent, folder / "paragent", ignore=hidden)
    information = folder / f"paragent-{VERSION}.dist-info"
    information.mkdir()
    extra = "Provides-Extra: web\nRequires-Dist: no-such-package; extra == 'web'\n"
    (information / "METADATA").write_text(f"Metadata-Version: 2.4\nName: paragent\nVersion: {VERSION}\n{extra}")
    return folder


def origin(installed: Path, url: dict[str, Any] | None) -> None:
    """Write what pip notes about the origin of an installation."""
    file = installed / f"paragent-{VERSION}.dist-info" / "direct_url.json"
    file.unlink(missing_ok=True)
    if url is not None:
        file.write_text(json.dumps(url))


def activated() -> str:
    """Return the PATH of a shell in which the environment of the tests is active."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def run(command: list[str], sources: Path, folder: Path, path: str | None = None) -> str:
    variables = os.environ | {"PYTHONPATH": str(sources), "COLUMNS": "200", "DISPLAY": "", "PATH": path or activated()}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("url", "command"),
    [
        (None, "pip install 'paragent[ray]'"),
        ({"url": "file:///src/my%20clone", "dir_info": {}}, "pip install '/src/my clone[ray]'"),
        (
            {"url": "file:///tmp/paragent-0.2.0-py3-none-any.whl", "archive_info": {}},
            "pip install '/tmp/paragent-0.2.0-py3-none-any.whl[ray]'",
        ),
        (
            {"url": "https://example.org/paragent-0.2.0.tar.gz", "archive_info": {}},
            "pip install 'paragent[ray] @ https://example.org/paragent-0.2.0.tar.gz'",
        ),
        (
            {"url": "https://example.org/p.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'paragent[ray] @ git+https://example.org/p.git@abc'",
        ),
        (
            {
                "url": "https://e.org/p.git",
                "vcs_info": {"vcs": "git", "commit_id": "abc", "requested_revision": "main"},
            },
            "pip install 'paragent[ray] @ git+https://e.org/p.git@main'",
        ),
    ],
    ids=["index", "folder", "wheel", "archive", "commit", "branch"],
)
@pytest.mark.slow
def test_the_command_has_the_origin_of_the_installation(
    url: dict[str, Any] | None, command: str, installed: Path, tmp_path: Path
) -> None:
    origin(installed, url)
    assert run([sys.executable, "-c", PRINT_COMMAND], installed, tmp_path).strip() == command


@pytest.mark.slow
def test_in_the_folder_of_its_origin_the_command_is_short(installed: Path, tmp_path: Path) -> None:
    origin(installed, {"url": tmp_path.as_uri(), "dir_info": {}})
    assert run([sys.executable, "-c", PRINT_COMMAND], installed, tmp_path).strip() == "pip install '.[ray]'"


@pytest.mark.slow
def test_doctor_prints_the_command_for_this_installation(installed: Path, tmp_path: Path) -> None:
    origin(installed, {"url": "file:///src/clone", "dir_info": {}})
    shown = run([sys.executable, "-m", "paragent", "doctor", "web"], installed, tmp_path)
    assert "pip install '/src/clone[web]'" in shown


def test_in_a_clone_the_command_keeps_the_editable_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", activated())
    monkeypatch.chdir(ROOT)
    assert install_command(["web", "rag", "web"]) == "pip install -e '.[rag,web]'"
    monkeypatch.chdir(tmp_path)
    assert install_command(["web"]) == f"pip install -e '{ROOT}[web]'"


def fake_environment(folder: Path, monkeypatch: pytest.MonkeyPatch, *, has_pip: bool) -> Path:
    """Pretend that an environment in a folder executes this program, and that PATH has other programs; return its Python."""
    others = folder / "others"
    others.mkdir()
    for name in ("pip", "uv"):
        (others / name).touch(0o755)
    python = folder / "clone" / ".venv" / "bin" / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(sys, "prefix", str(python.parents[1]))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ROOT if has_pip else None)
    monkeypatch.setenv("PATH", str(others))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    (folder / "clone").mkdir()
    return python


def test_the_command_names_an_environment_that_is_not_active(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = fake_environment(tmp_path, monkeypatch, has_pip=True)
    assert install_command(["web"]).startswith(f"{python} -m pip install ")
    monkeypatch.chdir(tmp_path / "clone")
    assert install_command(["web"]).startswith(".venv/bin/python -m pip install ")  # after `make demo`


def test_uv_installs_into_the_environment_that_executes_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = fake_environment(tmp_path, monkeypatch, has_pip=False)
    assert install_command(["web"]).startswith(f"uv pip install --python {python} ")
    monkeypatch.setenv("VIRTUAL_ENV", str(python.parents[1]))
    assert install_command(["web"]).startswith("uv pip install -e ")


def test_an_error_of_another_host_keeps_its_command() -> None:
    error = MissingExtra("the engine 'ray'", "ray", "ray", "pip install '/elsewhere[ray]'")
    assert str(pickle.loads(pickle.dumps(error))).endswith("pip install '/elsewhere[ray]'")

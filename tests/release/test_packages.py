"""The packages of a release: what the sdist and the wheel contain, and what a user can do with the wheel in an empty environment.

They are built from the files that git tracks. The pages of `paragent view` are those of the checkout (`make web` builds them).
"""

from __future__ import annotations

import email
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
import zipfile
from collections.abc import Sequence
from email.message import Message
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from paragent.cli.docs.files import document_files
from tests.children import BoundedPopen

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
BUNDLE = Path("src/paragent/view/bundle")
PROGRAMS = Path(sys.executable).parent
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def output(command: Sequence[str | Path], folder: Path, path: Path = PROGRAMS) -> str:
    """Run a command with an empty home and only the programs of `path` (no node, browser or sandbox); return its output."""
    done = subprocess.run(command, cwd=folder, env=variables(folder, path), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def variables(home: Path, path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_", "XDG_CACHE"))}
    cache = os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv"))
    return kept | {"HOME": str(home), "PATH": str(path), "UV_CACHE_DIR": cache, "LANG": "C.UTF-8"}


def tracked(folder: str = ".") -> set[str]:
    """Return the files that git tracks in a folder."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", folder], cwd=ROOT, capture_output=True, text=True, check=True, timeout=500
    ).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).exists()}


def build(kind: str, source: Path, target: Path) -> str:
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "build",
        "--installer",
        "uv",
        f"--{kind}",
        "--outdir",
        target,
        source,
    ]
    return output(command, source)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist in a copy of the checkout."""
    tree = tmp_path_factory.mktemp("tree")
    for name in tracked():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)
    assert (ROOT / BUNDLE / "index.html").exists(), "run `make web` first"
    shutil.copytree(ROOT / BUNDLE, tree / BUNDLE)
    (tree / BUNDLE / "index.html").touch()  # newer than the sources, so that the pages are not built again
    build("sdist", tree, tree / "dist")
    [path] = (tree / "dist").iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the sdist, as pip does."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    [source] = folder.iterdir()
    log = build("wheel", source, folder / "dist")
    assert "node" not in re.findall(r"^  - (.*)$", log, re.MULTILINE), log
    [path] = (folder / "dist").iterdir()
    return path


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(f"paragent-{VERSION}.dist-info/METADATA"))


# --- contents ---------------------------------------------------------------------------------------------------------------


def pages() -> set[str]:
    return {str(path.relative_to(ROOT)) for path in (ROOT / BUNDLE).rglob("*") if path.is_file()}


def documents() -> set[str]:
    """Return the files of the documentation in the package."""
    return {f"src/paragent/cli/docs/pages/{name}" for name in set(document_files(ROOT)) & tracked()}


def test_the_wheel_has_all_files_of_the_package_and_no_others(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    information = {name for name in names if name.startswith(f"paragent-{VERSION}.dist-info/")}
    assert names - information == {
        name.removeprefix("src/") for name in tracked("src/paragent") | pages() | documents()
    }
    assert f"paragent-{VERSION}.dist-info/licenses/LICENSE" in information
    assert "paragent/view/bundle/licenses.md" in names  # of the packages that the pages contain


def test_the_sdist_has_the_package_and_what_its_build_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()}
    generated = {name for name in names if name.startswith("src/paragent.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    files = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "README.md", "constraints.txt", "pyproject.toml"}
    package = tracked("src/paragent") | pages() | documents()
    assert names - generated == package | files | {"setup.py", "web/build_backend.py"}


def test_all_files_name_the_same_version(sdist: Path, wheel: Path, metadata: Message) -> None:
    citation = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    newest = re.search(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert citation is not None
    assert newest is not None
    assert (metadata["Version"], citation[1], newest[1]) == (VERSION, VERSION, VERSION)
    assert sdist.name == f"paragent-{VERSION}.tar.gz"
    assert wheel.name == f"paragent-{VERSION}-py3-none-any.whl"


def test_the_package_index_accepts_the_packages(sdist: Path, wheel: Path) -> None:
    checked = output([sys.executable, "-m", "twine", "check", "--strict", sdist, wheel], sdist.parent)
    assert checked.count("PASSED") == 2


def test_the_description_has_no_relative_links(metadata: Message) -> None:
    description = metadata.get_payload()
    assert isinstance(description, str)
    text = re.sub(r"^```.*?^```$", "", description, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"""(?:\]\(|(?:src|href)=")([^)"]*)""", text)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert any(target.endswith(".png") for target in targets)
    assert "](https://paragent.github.io/paragent/" in text


# --- an empty environment ---------------------------------------------------------------------------------------------------


def first_commands() -> tuple[str, str]:
    """Return the commands of the README for an environment of the user: the installation, and the first use."""
    _, block, *_ = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    install, command = block.splitlines()
    return install, command


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the programs of an environment in which only the README's installation was executed."""
    folder = tmp_path_factory.mktemp("environment")
    *_, requirement = shlex.split(first_commands()[0])
    assert requirement == ".[demo]"
    output([PROGRAMS / "uv", "venv", "--python", sys.executable, folder / "venv"], folder)
    install(requirement.replace(".", str(wheel), 1), folder / "venv" / "bin")
    return folder / "venv" / "bin"


def install(requirement: str, programs: Path) -> None:
    command: list[str | Path] = [
        PROGRAMS / "uv",
        "pip",
        "install",
        "--compile-bytecode",
        "--python",
        programs / "python",
    ]
    output([*command, "--constraint", ROOT / "constraints.txt", *shlex.split(requirement)], programs)


def test_the_first_command_of_the_readme_shows_runs_in_a_browser(programs: Path, tmp_path: Path) -> None:
    program, *arguments = shlex.split(first_commands()[1])
    with BoundedPopen(
        [programs / program, *arguments],
        cwd=tmp_path,
        env=variables(tmp_path, programs),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        shown = ""
        while "served until Ctrl-C" not in shown and (line := demo.stdout.readline()):
            shown += line
        link = re.search(r"http://127\.0\.0\.1:\S+", shown)
        assert link is not None, shown + (demo.communicate(timeout=60)[1] or "")
        assert {"math-t0.2", "math-t0.8", "rag"} == runs_at(link[0])
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 0, errors
    assert "Traceback" not in errors
    for text in ("200 responses", "times as fast", "math-t0.8", "paragent init my-project"):
        assert text in shown
    skipped = shown.partition("Optional parts that this machine cannot run yet\n")[2].splitlines()[:3]
    assert [line.split()[0] for line in skipped] == ["py:", "web:", "desktops:"]
    assert all("install" in line for line in skipped)


def runs_at(link: str) -> set[str]:
    """Return the names of the runs that the view at this link shows, as a browser gets them."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    with browser.open(link) as page:
        assert '<script type="module"' in page.read().decode()
    address = link.partition("/?")[0]
    with browser.open(f"{address}/api/runs") as reply:
        return set(re.findall(r'"name":\s*"([^"]+)"', reply.read().decode()))


def test_a_new_project_can_be_installed_and_tested(programs: Path, tmp_path: Path) -> None:
    def run(command: str, folder: Path) -> str:
        program, *arguments = shlex.split(command)
        return output([programs / program, *arguments], folder, programs)

    assert run("paragent --version", tmp_path) == f"paragent {VERSION}\n"
    assert "tasks" in run("paragent doctor", tmp_path)
    run("paragent init web-shop", tmp_path)
    project = tmp_path / "web-shop"
    commands = re.search(r"```bash\n(.*?)```", (project / "README.md").read_text(), re.DOTALL)
    assert commands is not None
    installation, rollout, _, tests = commands[1].splitlines()
    assert installation == "pip install -e '.[dev]'"
    install(f"--editable '{project}[dev]'", programs)
    assert "0.875" in run(rollout, project)
    assert "passed" in run(tests, project)

"""Virtual environments of peers whose packages conflict with paragent's. `python -m bench.peers` creates them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

__all__ = ["PEERS", "Peer", "create", "peer_program", "peer_versions"]

_HERE = Path(__file__).parent
_INSTALL_SECONDS = 1800.0
"""AWorld, with Ray and Spark, is the largest set: 1.5 GB."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A package from PyPI that runs in an environment of its own."""

    package: str
    requirements: tuple[str, ...]
    oldest: tuple[int, int] = (3, 11)
    """The oldest version of Python that it supports."""
    overrides: tuple[str, ...] = ()
    """Requirements that replace those of the package."""


PEERS = {
    "agentscope": Peer("agentscope", ("agentscope[distribute]==0.1.6", "tqdm")),  # it does not declare tqdm
    "aworld": Peer(
        "aworld", ("aworld==0.3.2", "pydantic<2.12", "ray", "pyspark")
    ),  # its MCP package needs old pydantic
    "inspect_ai": Peer("inspect_ai", ("inspect_ai==0.3.285", "openai")),
    # It asks for a version of certifi that is not on every index; its viewer does not use it.
    "harbor": Peer("harbor", ("harbor==0.25.0",), oldest=(3, 12), overrides=("certifi",)),
    "verifiers": Peer("verifiers", ("verifiers==0.4.0",)),
}
"""By the name of the folder in `bench/peers`."""


def peer_program(name: str, program: str = "python") -> Path:
    """Return the path of a program in a peer's environment.

    Raises:
        RuntimeError: the environment does not exist, or its installation did not finish.
    """
    if not (_HERE / name / ".ready").exists():
        raise RuntimeError(f"{name} has no environment; run 'python -m bench.peers {name}'")
    return _HERE / name / "bin" / program


def peer_versions() -> dict[str, str]:
    """Return the installed version of each peer that has an environment."""
    found = {}
    for name, peer in PEERS.items():
        folders = [str(path) for path in (_HERE / name).glob("lib/python*/site-packages")]
        for distribution in distributions(name=peer.package, path=folders):
            found[peer.package] = distribution.version
    return found


def create(name: str) -> None:
    """Create the environment of a peer, unless it exists with the same requirements.

    Raises:
        RuntimeError: no interpreter is new enough, or the installation failed.
    """
    peer, folder = PEERS[name], _HERE / name
    ready, wanted = folder / ".ready", "\n".join([*peer.requirements, *peer.overrides])
    if ready.exists() and ready.read_text() == wanted:
        return
    ready.unlink(missing_ok=True)
    _uv("venv", "--clear", "--python", _interpreter(peer.oldest), str(folder))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as overrides:
        overrides.write("\n".join(peer.overrides))
        overrides.flush()
        python = str(folder / "bin" / "python")
        _uv("pip", "install", "--python", python, "--overrides", overrides.name, *peer.requirements)
    ready.write_text(wanted)


def _uv(*arguments: str) -> None:
    command = [sys.executable, "-m", "uv", *arguments]
    environment = {"UV_NATIVE_TLS": "1"} | os.environ
    ended = subprocess.run(
        command, env=environment, check=False, capture_output=True, text=True, timeout=_INSTALL_SECONDS
    )
    if ended.returncode:
        last = " ".join(ended.stderr.split())[-400:]
        raise RuntimeError(f"'uv {' '.join(arguments)}' ended with {ended.returncode}: {last}")


def _interpreter(oldest: tuple[int, int]) -> str:
    """Return a Python of at least this version: this one, BENCH_PYTHON, one on the path, or one of pyenv."""
    names = [sys.executable, os.environ.get("BENCH_PYTHON", ""), *(f"python3.{minor}" for minor in range(12, 16))]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    names += sorted(map(str, pyenv.glob("versions/3.*/bin/python")))
    check = f"import sys; sys.exit(sys.version_info < {oldest})"
    for found in filter(None, map(shutil.which, filter(None, names))):
        if subprocess.run([found, "-c", check], check=False, capture_output=True).returncode == 0:
            return found
    wanted = ".".join(map(str, oldest))
    raise RuntimeError(f"it needs Python {wanted} or later; install one, or set BENCH_PYTHON to its path")

"""`paragent view`: show runs in a browser."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from paragent._internal.processes import bound_to_parent
from paragent._internal.text import counted
from paragent.cli.options import add_command, add_tls_options, tls_conf
from paragent.errors import ConfigError, MissingExtra, ParagentError
from paragent.store import JOURNAL_FILE, find_runs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from paragent.cli.options import Subparsers

__all__ = ["add", "check_installed", "has_display", "open_browser", "ssh_command", "view_of"]

_PROGRESS_SECONDS = 2.0
_SSH_FIELDS = 4
_DEFAULT_FOLDER = Path("results")


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "view",
        "show runs in a browser: tables, timelines, transcripts",
        "Start a web server on this host and print a link to it. Ctrl-C stops the server.",
    )
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        metavar="RUN",
        default=_DEFAULT_FOLDER,
        help="run directory, its name in ./results, or a folder of runs (default: results)",
    )
    parser.add_argument("--port", type=int, metavar="N", default=0, help="port to listen on (default: a free one)")
    host = "address to listen on (default: 127.0.0.1, which other hosts cannot reach)"
    parser.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help=host)
    parser.add_argument("--no-browser", action="store_true", help="only print the link")
    pool = "also show this pool of machines; pools of live runs are shown without it; may be repeated"
    parser.add_argument("--pool-address", metavar="HOST:PORT", action="append", default=[], help=pool)
    server = "also show this agent server; may be repeated"
    parser.add_argument("--agent-server", metavar="HOST:PORT", action="append", default=[], help=server)
    export = "start no server; write the pages and the data as files that any web server can publish"
    parser.add_argument("--export", type=Path, metavar="DIR", help=export)
    add_tls_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    shows_more = bool(options.agent_server or options.pool_address)
    folder, name = _chosen(options.path, may_be_missing=shows_more and options.path == _DEFAULT_FOLDER)
    check_installed()
    if options.export is not None:
        return _export(folder, name, options.export)
    from paragent.view.access import is_loopback
    from paragent.view.server import ViewServer, ViewSettings

    if not 0 <= options.port < 1 << 16:
        raise ConfigError(f"--port must be from 0 to 65535, not {options.port}")
    settings = ViewSettings(
        folder=folder,
        host=options.host,
        port=options.port,
        pools=options.pool_address,
        agent_servers=options.agent_server,
        tls=tls_conf(options),
    )
    with contextlib.suppress(KeyboardInterrupt), ViewServer(settings) as server:
        page = f"/run/{name}" if name else _first_page(folder, options)
        link = server.link(page)
        if not is_loopback(options.host):
            print(
                f"paragent: everyone who can reach {options.host} and has the link can read and control the runs; the "
                "connection is not encrypted",
                file=sys.stderr,
            )
        forwarding = ssh_command(link) if is_loopback(options.host) else ""
        first = f"\nOn your own computer, first: {forwarding}" if forwarding else ""
        print(f"{_described(folder, name)}\n  {link}{first}\nCtrl-C stops the server.", flush=True)
        if options.agent_server:
            threading.Thread(target=_report_silent_servers, args=[options], daemon=True).start()
        if not options.no_browser:
            open_browser(server.link_for_once(page))
        server.wait()
    return 0


def check_installed() -> None:
    """Check that the packages of the view are installed and its pages are built.

    Raises:
        MissingExtra: a package is missing.
        UsageError: the pages are not built.
    """
    try:
        from paragent.view.server import check_bundle
    except ModuleNotFoundError as error:
        raise MissingExtra("`paragent view`", "view", str(error.name)) from error
    check_bundle()


@contextlib.contextmanager
def view_of(path: Path, *, browser: bool = False) -> Iterator[str]:
    """Serve a run, or a folder of runs, in a process of its own; yield the link.

    The process ends with the block, and with this process.

    Args:
        path: the run directory, or the folder.
        browser: also open the link, if this host has a display.
    """
    command = [sys.executable, "-m", "paragent", "view", str(path.resolve())]
    command += [] if browser else ["--no-browser"]
    with subprocess.Popen(
        bound_to_parent(command), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines = (line.strip() for line in process.stdout)
            link = next((line for line in lines if line.startswith("http://")), "")
            if not link:
                raise ParagentError("the view did not start; see the message above")
            yield link
        finally:
            process.terminate()


def ssh_command(link: str) -> str:
    """Return the command that forwards the port of a link from the user's own computer; empty outside of an SSH session."""
    from urllib.parse import urlsplit

    client = os.environ.get("SSH_CONNECTION", "").split()  # addresses and ports of the client and of this host
    if len(client) != _SSH_FIELDS:
        return ""
    address, port = urlsplit(link).hostname, urlsplit(link).port
    return f"ssh -N -L {port}:{address}:{port} {client[2]}"


def _export(folder: Path, name: str, target: Path) -> int:
    from paragent.view.api import PageSettings
    from paragent.view.export import ExportProgress, export_runs
    from paragent.view.runs import RunFolder
    from paragent.view.server import BUNDLE, version

    runs = RunFolder(folder)
    chosen = [runs.get(name)] if name else runs.all()
    if not chosen:
        raise ConfigError(f"there are no runs in {folder}")
    printed = time.monotonic()

    def watch(progress: ExportProgress) -> None:
        nonlocal printed
        if time.monotonic() - printed > _PROGRESS_SECONDS:
            printed = time.monotonic()
            done = f"{progress.executions:,} of {progress.total:,} executions"
            print(f"paragent: {done}, {progress.size / 1e6:,.1f} MB", file=sys.stderr)

    done = export_runs(chosen, target, PageSettings(version(), folder.name, static=True), BUNDLE, watch)
    print(f"{counted(len(chosen), 'run')} written to {target}: {done.files:,} files, {done.size / 1e6:,.1f} MB")
    print(f"Look at it: python -m http.server --directory {shlex.quote(str(target))} --bind 127.0.0.1 8000")
    return 0


def _chosen(path: Path, *, may_be_missing: bool) -> tuple[Path, str]:
    """Return the folder of runs and the name of a run in it; without a name, all runs are meant.

    Args:
        path: the run or the folder.
        may_be_missing: whether a folder that does not exist counts as empty.

    Raises:
        ConfigError: there is neither a run nor a folder of this name.
    """
    for candidate in (path, _DEFAULT_FOLDER / path):
        if (candidate / JOURNAL_FILE).exists():
            resolved = candidate.resolve()
            return resolved.parent, resolved.name
    if path.is_dir() or (may_be_missing and not path.exists()):
        return path.resolve(), ""
    if path == _DEFAULT_FOLDER:
        raise ConfigError(
            f"there is no folder {path} here, so there are no runs to look at; name another folder, or make a run with "
            "`paragent rollout --mode math --data sample --model demo`"
        )
    raise ConfigError(f"there is no run and no folder {path}; `paragent runs` lists the runs in ./results")


def _first_page(folder: Path, options: argparse.Namespace) -> str:
    """Return the page that the link opens if no run is named: an agent server or pool, if there is no folder of runs."""
    if folder.is_dir():
        return ""
    return "/servers" if options.agent_server else "/pools"


def _described(folder: Path, name: str) -> str:
    if name:
        return f"The run {name} in {folder}:"
    return f"{counted(len(find_runs(folder)), 'run')} in {folder}:"


def _report_silent_servers(options: argparse.Namespace) -> None:
    """Print which agent servers do not answer. It takes seconds, so the pages do not wait for it."""
    from paragent.view.servers import ServerViews

    for server in ServerViews(options.agent_server, tls_conf(options)).servers().servers:
        if server.problem:
            print(f"paragent: agent server {server.address}: {server.problem}", file=sys.stderr, flush=True)


def has_display() -> bool:
    """Return whether this host can show a browser."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_browser(link: str) -> None:
    """Open the link if this host has a display; a browser in the terminal would take it over."""
    import webbrowser

    if has_display():
        webbrowser.open(link)

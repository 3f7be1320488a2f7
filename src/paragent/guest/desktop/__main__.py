"""Bring up a desktop and serve it until the process is ended: `python3 -m paragent.guest.desktop --help`."""

from __future__ import annotations

import argparse
import os
import socket

from paragent.guest.agent import Server, secret_source
from paragent.guest.desktop.clock import split
from paragent.guest.desktop.server import DesktopGuest, DesktopHandler
from paragent.guest.desktop.session import APPLICATIONS, environment, start_display, start_session

__all__ = ["main"]

_XVFB = "Xvfb -nolisten tcp -noreset -screen 0 {width}x{height}x24"


def main(arguments: list[str] | None = None) -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description="A desktop for whoever holds this machine.")
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104 - the machine's network is the pool's
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--fd", type=int, help="serve this listening socket instead of opening a port")
    parser.add_argument("--folder", default="/home/user", help="the user's folder")
    parser.add_argument("--user", help="who it belongs to, on a machine of its own where this runs as root")
    parser.add_argument("--screen", default="1920x1080")
    parser.add_argument("--x-server", default=_XVFB, help="its command line")
    every = ",".join(application.name for application in APPLICATIONS)
    parser.add_argument("--applications", default=every, help="which are open at first")
    parser.add_argument("--application-seconds", type=float, default=30.0, help="for their windows to appear")
    parser.add_argument("--one-by-one", action="store_true", help="open them one after the other")
    parser.add_argument("--secret-file", help="has the secret by which the pool says who holds this machine")
    parser.add_argument("--secret-fd", type=int, help="a pipe from which that secret is read instead")
    options = parser.parse_args(arguments)
    secret = secret_source(options.secret_file, options.secret_fd)
    width, _, height = options.screen.partition("x")
    os.makedirs(options.folder, exist_ok=True)
    home = environment(options.folder)
    os.environ.clear()
    os.environ.update(home)
    os.environ["DISPLAY"] = start_display(options.x_server.format(width=width, height=height).split())
    clock = split(options.user) if options.user else None
    start_session(options.folder, options.applications.split(","), options.application_seconds, options.one_by_one)
    inherited = options.fd is not None
    listener = socket.socket(fileno=options.fd) if inherited else socket.create_server((options.host, options.port))
    guest = DesktopGuest(options.folder, clock, secret)
    guest.rehearse()
    with Server(listener, guest, DesktopHandler) as server:
        server.serve_forever(poll_interval=60)


if __name__ == "__main__":
    main()

"""Start a desktop and serve it until the process ends: `python3 -m paragent.guest.desktop --help`."""

from __future__ import annotations

import argparse
import os
import socket

from paragent.guest.agent import Server, secret_source
from paragent.guest.desktop.server import DesktopGuest, DesktopHandler
from paragent.guest.desktop.session import APPLICATIONS, environment, start_clock_process, start_display, start_session

__all__ = ["main"]

_XVFB = "Xvfb -nolisten tcp -noreset -screen 0 {width}x{height}x24"


def main(arguments: list[str] | None = None) -> None:
    """Serve until the process ends."""
    parser = argparse.ArgumentParser(description="Serve a desktop to the holder of this machine.")
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104 - the pool controls the network of the machine
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--fd", type=int, help="serve this listening socket instead of opening a port")
    parser.add_argument("--folder", default="/home/user", help="the user's folder")
    parser.add_argument("--user", help="run the desktop as this user; needs root")
    parser.add_argument("--screen", default="1920x1080")
    parser.add_argument("--x-server", default=_XVFB, help="command line of the X server")
    every = ",".join(application.name for application in APPLICATIONS)
    parser.add_argument("--applications", default=every, help="applications that are open at the start")
    parser.add_argument(
        "--application-seconds", type=float, default=30.0, help="time limit for their windows to appear"
    )
    parser.add_argument("--one-by-one", action="store_true", help="start them one after the other")
    parser.add_argument("--secret-file", help="file with the secret of the pool")
    parser.add_argument("--secret-fd", type=int, help="file descriptor of a pipe with the secret, instead of a file")
    options = parser.parse_args(arguments)
    secret = secret_source(options.secret_file, options.secret_fd)
    width, _, height = options.screen.partition("x")
    os.makedirs(options.folder, exist_ok=True)
    home = environment(options.folder)
    os.environ.clear()
    os.environ.update(home)
    os.environ["DISPLAY"] = start_display(options.x_server.format(width=width, height=height).split())
    clock = start_clock_process(options.user) if options.user else None
    start_session(options.folder, options.applications.split(","), options.application_seconds, options.one_by_one)
    inherited = options.fd is not None
    listener = socket.socket(fileno=options.fd) if inherited else socket.create_server((options.host, options.port))
    guest = DesktopGuest(options.folder, clock, secret)
    guest.warm_up()
    with Server(listener, guest, DesktopHandler) as server:
        server.serve_forever(poll_interval=60)


if __name__ == "__main__":
    main()

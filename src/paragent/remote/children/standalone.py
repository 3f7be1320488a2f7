"""An independent server in a process of its own, started by a launcher and ended with it."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading

__all__ = ["main"]


def main() -> None:
    """Serve as the launcher says until its end of the pipe closes."""
    from paragent._internal.processes import end_own_group
    from paragent.errors import ParagentError

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what agents print must not be taken for an answer
    sys.path[:], code, body = pickle.load(source)
    from paragent.remote.launcher import RpcAgentServerLauncher
    from paragent.serialization import Parcel, unpack

    launcher = RpcAgentServerLauncher(**unpack(Parcel(body, code)))
    try:
        launcher.launch(in_subprocess=False)
    except ParagentError as error:
        answers.write(f"{error}\n")
        answers.close()
        return

    def watch() -> None:
        try:
            source.read()
            launcher.shutdown()
        finally:
            end_own_group()

    threading.Thread(target=watch, daemon=True).start()
    answers.write(f"{launcher.port}\n")
    answers.close()
    try:
        launcher.wait_until_terminate()
    finally:
        end_own_group()


if __name__ == "__main__":
    main()

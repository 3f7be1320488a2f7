"""Remote calls of peers: Ray's actors, plain gRPC, and AgentScope in a virtual environment of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.peers.environments import peer_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["agentscope_run", "bare_grpc", "ray_actor"]

_HERE = Path(__file__).parent
_START_SECONDS = 120.0
"""Seconds for a program that takes about five."""


@contextmanager
def ray_actor() -> Iterator[Any]:
    """An actor of Ray; `call(method, argument)` returns a function that waits for the answer."""
    from bench.clusters import ray_here

    with ray_here() as ray:

        class Echo:
            def reply(self, x: Any) -> Any:
                return x

            def size(self, x: Any) -> int:
                return len(x)

        actor = ray.remote(Echo).remote()
        ray.get(actor.reply.remote(1))

        def call(method: str, argument: Any) -> Callable[[], Any]:
            reference = getattr(actor, method).remote(argument)
            return lambda: ray.get(reference)

        yield call
        ray.kill(actor)


@contextmanager
def bare_grpc() -> Iterator[Any]:
    """gRPC with one unary call for each message, to a server in another process."""
    import pickle

    import grpc

    server = subprocess.Popen(
        [sys.executable, str(_HERE / "grpc_server.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        with grpc.insecure_channel(f"localhost:{port}") as channel:
            reply: Any = channel.unary_unary("/echo/reply", pickle.dumps, pickle.loads)
            reply(1, wait_for_ready=True)

            def call(method: str, argument: Any) -> Callable[[], Any]:
                assert method == "reply"
                result: Callable[[], Any] = reply.future(argument).result
                return result

            yield call
        server.kill()


def agentscope_run(outstanding: int, size: int) -> float:
    """Return the calls per second of AgentScope 0.1.6, in an environment of its own."""
    script = [str(peer_program("agentscope")), str(_HERE / "agentscope_echo.py"), str(outstanding), str(size)]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True, start_new_session=True) as program:
        # It prints its number and does not end, because its server process keeps it alive. So both are killed here.
        late = threading.Timer(_START_SECONDS, os.killpg, (program.pid, signal.SIGKILL))
        late.start()
        try:
            assert program.stdout is not None
            return float(program.stdout.readline())
        finally:
            late.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)

"""A client that sends any given message."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from paragent.remote.protocol import CreateAgent, DefineClass
from paragent.remote.reliable_stream import ReliableStream
from paragent.remote.values import encode_argument
from paragent.transport.auth import load_token
from paragent.transport.client import ClientStream, connect
from paragent.transport.loop import run
from tests.remote.agents import Worker

if TYPE_CHECKING:
    from pathlib import Path

    from paragent.transport import Address


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> Any:
        return open, (self._path, "w")


class RawClient:
    """A client with an agent (number 1). It ignores the window, and reads only on request."""

    def __init__(
        self, address: Address, *, writes_data: bool = False, data_only: bool = False, agent: type = Worker
    ) -> None:
        self._frames = ReliableStream(1 << 30, reads_data=data_only)
        self._frames.writes_data = writes_data
        self.session = os.urandom(16).hex()
        hello = {"session": self.session, "received": 0, "reconnect": False, "data_only": data_only}
        self.stream: ClientStream
        self.stream, _ = run(connect(address, "agents", load_token(), None, hello, 10.0), 20.0)
        cls, _, _ = encode_argument(agent, "a class")
        name = agent.__name__
        self.say(
            [
                DefineClass(1, agent.__module__, name, None if writes_data else cls),
                CreateAgent(1, 1, "init", ("raw",), None),
            ]
        )

    def say(self, items: list[Any], attachments: list[bytes] | None = None) -> None:
        async def write() -> None:
            for message in self._frames.next_frame(items, attachments or []):
                await self.stream.write(message)

        run(write(), 20.0)

    def read(self, count: int) -> list[Any]:
        """Return `count` answers, and acknowledge them as a client does."""
        answers: list[Any] = []

        async def hear() -> None:
            while len(answers) < count:
                messages = self._frames.receive(await self.stream.read())
                if messages is not None:
                    answers.extend(messages[1])
                    for message in self._frames.next_frame([]):
                        await self.stream.write(message)

        run(hear(), 60.0)
        return answers

    def ask(self, kind: Any, *fields: Any) -> Any:
        """Send one message and return its answer."""
        self.say([kind(*fields)])
        return self.read(1)[0]

    def close(self) -> None:
        run(self.stream.close(), 5.0)

"""Five agents in other processes: calls return at once, so the program takes a fifth of the time."""

import time
from collections.abc import Iterator

from paragent import AgentBase, Msg


class Reader(AgentBase):
    def reply(self, x: Msg) -> Msg:
        time.sleep(1)  # a slow page
        return Msg(name=self.name, content=f"{self.name} has read {x.content}")

    def words(self, text: str) -> Iterator[str]:
        yield from text.split()


readers = [Reader(f"reader {number}", to_dist=True) for number in range(5)]
started = time.monotonic()
results = [reader.reply(Msg("user", f"page {number}")) for number, reader in enumerate(readers)]
print(f"five calls returned after {time.monotonic() - started:.2f} s")
for result in results:
    print(result.content)  # waits for the result
print(f"five pages of a second each took {time.monotonic() - started:.1f} s")
print(*readers[0].words("a remote generator is iterated over the network"), sep=" | ")

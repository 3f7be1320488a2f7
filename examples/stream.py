"""Stream a hundred thousand tasks from a generator with constant memory."""

import resource
import sys
import time
from collections.abc import Iterator

from paragent import RunConfig, Runners, Task


def count_words(text: str) -> int:
    return len(text.split())


def tasks(count: int) -> Iterator[Task]:
    for number in range(count):
        yield Task(input=f"this is text number {number}", agent=count_words)


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
started, before, words = time.monotonic(), megabytes(), 0
for number, response in enumerate(Runners.iter_tasks(tasks(count), RunConfig(worker_num=2)), 1):
    words += response.unwrap()
    if number == 1:
        print(f"first answer after {time.monotonic() - started:.2f} s")
seconds = time.monotonic() - started
print(
    f"{words} words in {count} texts, {count / seconds:,.0f} tasks per second, {megabytes() - before:.0f} MB more memory"
)

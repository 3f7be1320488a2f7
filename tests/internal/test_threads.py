"""`start_thread` and `run_loop`: the end of a thread is never unnoticed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from paragent._internal.threads import FATAL_STATUS, run_loop, start_thread


@pytest.mark.parametrize("raised", ["ValueError('boom')", "SystemExit('boom')", "KeyboardInterrupt('boom')"])
def test_an_unexpected_end_of_a_thread_ends_its_process_with_a_traceback(raised: str) -> None:
    program = f"""
import sys, threading
from paragent._internal.threads import start_thread

def read():
    raise {raised}

sys.stderr = None
start_thread(read, name="reader")
threading.Event().wait(60)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == FATAL_STATUS
    assert "'reader'" in ended.stderr
    assert "boom" in ended.stderr
    assert "in read" in ended.stderr


def test_an_error_without_a_printable_traceback_ends_the_process() -> None:
    program = """
import threading
from paragent._internal.threads import start_thread

def read():
    raise Unprintable

start_thread(read, name="reader")
threading.Event().wait(60)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == FATAL_STATUS
    assert "Unprintable" in ended.stderr


def test_a_failed_function_can_handle_the_end_of_a_thread() -> None:
    received: list[tuple[str, BaseException]] = []
    error = SystemExit(3)

    def end() -> None:
        raise error

    start_thread(end, name="loop", failed=lambda *reported: received.append(reported)).join(10)
    assert received == [("loop", error)]


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, None])
def test_user_code_cannot_end_an_event_loop(end: type[BaseException] | None) -> None:
    loop = asyncio.new_event_loop()
    closing = threading.Event()
    thread = start_thread(run_loop, loop, closing.is_set, name="loop")

    async def task() -> None:
        if end is None:
            asyncio.get_running_loop().stop()
        else:
            raise end

    async def gathering() -> object:
        return (await asyncio.gather(task(), asyncio.sleep(0), return_exceptions=True))[0]

    outcome = asyncio.run_coroutine_threadsafe(gathering(), loop).result(60)
    assert outcome is None if end is None else isinstance(outcome, end)
    assert asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "goes on"), loop).result(60) == "goes on"
    closing.set()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    assert not thread.is_alive()
    loop.close()

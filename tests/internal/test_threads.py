"""The end of a thread is never unnoticed, and an exception that is raised in one disturbs no other."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from paragent._internal.threads import FATAL_STATUS, Abandoned, raise_in_thread, run_loop, start_thread


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


@pytest.mark.parametrize("case", ["taken back", "in native code", "ended"])
def test_an_exception_that_has_not_arrived_does_not_stop_a_debugger(case: str) -> None:
    program = f"""
import sys, threading
from paragent._internal.threads import Abandoned, raise_in_thread

release = threading.Event()
other = threading.Thread(target=release.wait, args=(60,))
other.start()
raise_in_thread(other.ident, Abandoned)
if {case!r} == "taken back":
    raise_in_thread(other.ident, None)
elif {case!r} == "ended":
    release.set()
    other.join()

def step():
    print("stepped")

sys.settrace(lambda frame, event, argument: None)
step()
sys.settrace(None)
release.set()
other.join()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.stdout, ended.returncode) == ("stepped\n", 0)


def test_an_exception_arrives_in_native_code_after_another_one_was_taken_back() -> None:
    arrived = threading.Event()
    release = threading.Event()

    def work() -> None:
        try:
            release.wait(60)
            while True:
                pass
        except Abandoned:
            arrived.set()

    thread = start_thread(work, name="work")
    idle = start_thread(release.wait, 60, name="idle")
    assert thread.ident is not None
    assert idle.ident is not None
    raise_in_thread(thread.ident, Abandoned)
    raise_in_thread(idle.ident, Abandoned)
    raise_in_thread(idle.ident, None)
    release.set()
    assert arrived.wait(30)
    thread.join(30)
    idle.join(30)

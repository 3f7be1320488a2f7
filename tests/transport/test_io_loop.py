"""The I/O loop: what happens if it ends unexpectedly."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from paragent._internal.threads import FATAL_STATUS

_PREPARE = """
    import asyncio, selectors, time
    from paragent import ServerLost
    from paragent.testing.programs import wait_until
    from paragent.transport import loop

    selector = selectors.DefaultSelector()
    loops = [asyncio.SelectorEventLoop(selector), asyncio.new_event_loop()]
    new_event_loop = asyncio.new_event_loop
    asyncio.new_event_loop = lambda: loops.pop(0) if loops else new_event_loop()
    loop.io_loop()

    def break_loop():
        loop.io_loop().call_soon_threadsafe(selector.close)
"""


def _run(program: str, status: int = 0) -> str:
    script = textwrap.dedent(_PREPARE) + textwrap.dedent(program)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=90, check=False)
    assert ended.returncode == status, ended.stderr
    return ended.stderr


def test_submitted_work_fails_and_the_next_use_starts_a_new_loop() -> None:
    said = _run("""
        called = []
        for _ in range(2):
            loop.on_failure(lambda name, error: called.append(name))
        once = lambda name, error: called.append("once")
        loop.on_failure(once)
        loop.on_failure(once)
        removed = lambda name, error: called.append("removed")
        loop.on_failure(removed)
        loop.off_failure(removed)
        pending = loop.submit(asyncio.sleep(60))
        break_loop()
        assert isinstance(pending.exception(20), ServerLost)
        assert called == ["paragent-io", "paragent-io", "once"]
        assert loop.run(asyncio.sleep(0, "result"), 20) == "result"
    """)
    assert "'paragent-io' ended unexpectedly" in said


_SERVERS = {
    "pool": "from paragent import VMPoolManager\nwith VMPoolManager('process', 1) as pool:\n    pool.serve()",
    "rate limit": "from paragent.models.rate_limit_server import RateLimitServer\nwith RateLimitServer(8) as server:",
}


@pytest.mark.parametrize("server", _SERVERS)
def test_a_server_ends_its_process_visibly(server: str) -> None:
    said = _run(f"{_SERVERS[server]}\n    break_loop()\n    time.sleep(60)\n", FATAL_STATUS)
    assert "'paragent-io' ended unexpectedly, so process" in said
    assert "Traceback" in said


@pytest.mark.parametrize("server", _SERVERS)
def test_a_server_that_was_closed_does_not_end_its_process(server: str) -> None:
    _run(f"""{_SERVERS[server]}
    pass
pending = loop.submit(asyncio.sleep(60))
break_loop()
assert isinstance(pending.exception(20), ServerLost)
""")


@pytest.mark.slow
def test_a_rate_limit_client_decides_by_itself_and_reconnects() -> None:
    _run("""
        import subprocess, sys
        from paragent.models.base import ModelSettings, RateLimitAddress
        from paragent.models.rate_limit_client import RateLimitClient

        serve = (
            "import sys\\n"
            "from paragent.models.rate_limit_server import RateLimitServer\\n"
            "with RateLimitServer(8) as server:\\n"
            "    print(server.address.address, server.address.secret, flush=True)\\n"
            "    sys.stdin.read()\\n"
        )
        server = subprocess.Popen([sys.executable, "-c", serve], stdin=-1, stdout=-1, text=True)
        address, secret = server.stdout.readline().split()
        shares = []
        client = RateLimitClient(
            ModelSettings(
                name="m", max_concurrency=8, answered=True, rate_limit=RateLimitAddress(address=address, secret=secret)
            ),
            lambda: (0, 8),
            lambda share, *_: shares.append(share),
        )
        wait_until(lambda: shares[-1:] == [8])
        break_loop()
        wait_until(lambda: None in shares)
        wait_until(lambda: shares[-1] == 8)
        client.close()
        wait_until(lambda: shares[-1] is None)
        server.communicate("")
    """)

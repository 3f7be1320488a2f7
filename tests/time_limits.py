"""A pytest plug-in: signals that end the children of tests, and a hard limit for each test.

The limit of pytest-timeout is an exception, which a test can lose: an `except` catches it, or a `finally` waits for ever. Some
seconds later a thread without Python code ends the process and prints the stacks of all threads. With xdist the test is
reported as failed, and a new process runs the tests that are left.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from typing import Any

import psutil
import pytest

_EXIT_SECONDS = 120.0
"""Seconds for a process to end after its last test: threads that nobody stopped would keep it for ever."""

_stderr = -1
"""The error output of the process, which pytest captures while a test runs."""
_grace = 60.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("hard_limit_grace", "seconds that a test has to end after its time limit", default=str(_grace))


def pytest_configure(config: pytest.Config) -> None:
    global _stderr, _grace
    _stderr = os.dup(2)
    _grace = float(config.getini("hard_limit_grace"))
    # A shell starts background jobs with these ignored, which their children inherit.
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Add the hard limit to that of pytest-timeout, which implements this hook as well."""
    faulthandler.dump_traceback_later(settings.timeout + _grace, exit=True, file=_stderr)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    faulthandler.cancel_dump_traceback_later()


def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return  # xdist ends its processes, after the last test of all
    faulthandler.dump_traceback_later(_EXIT_SECONDS, exit=True, file=_stderr)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """End what a process left behind that was ended by its hard limit, so that it disturbs no other test."""
    if not error:
        return
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it may end meanwhile, or belong to another user
            variables = process.environ()
            run, name = variables.get("PYTEST_XDIST_TESTRUNUID"), variables.get("PYTEST_XDIST_WORKER")
            if run == node.workerinput["testrunuid"] and name == node.gateway.id:
                process.kill()

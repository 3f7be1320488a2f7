"""The one waiter of all tests: wait until a condition holds, or fail with a message at a time limit.

The contract suites that are shipped in `paragent.testing` use it too, so it is implemented there.
"""

from __future__ import annotations

from paragent.testing.programs import wait_until, wait_until_async

__all__ = ["wait_until", "wait_until_async"]

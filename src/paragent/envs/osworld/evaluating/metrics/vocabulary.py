"""What tasks may say."""

from __future__ import annotations

__all__ = ["NotUnderstood"]


class NotUnderstood(ValueError):
    """A task says something that no metric here knows: a rule, a property, a kind of file.

    It is the one error of a metric that does not count as 0: the agent has nothing to do with it.
    """

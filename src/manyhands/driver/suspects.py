"""Finding the call that kills workers among many that shared one. No I/O, no clock.

When a worker dies with one running call, that call is charged. When it dies with many, none is: they run again in
groups of an eighth of the size, then of an eighth of that, down to one. The innocent are cleared by finishing; the
culprit of 5,000 is alone after five steps.
"""

from __future__ import annotations

__all__ = ["smaller_company"]

_FACTOR = 8


def smaller_company(suspects: int, company: int) -> int:
    """Return the size of the groups in which calls run again after `suspects` of them were in a worker that died.

    Args:
        suspects: how many were running in it.
        company: the group size that was already asked for; 0: none.
    """
    size = suspects if not company else min(suspects, company)
    return max(1, size // _FACTOR)

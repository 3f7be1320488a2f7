"""Finding the call that kills workers among many that shared one. No I/O, no clock.

When a worker dies with one running call, that call is charged. When it dies with many, none is: they run again, shared out
over all workers (or in halves, where there is one worker), each group with a worker to itself, and so on with the group that
dies again, down to one. The innocent are cleared by finishing; with 8 workers the culprit of 5,000 is alone after five steps.
"""

from __future__ import annotations

__all__ = ["smaller_company"]


def smaller_company(suspects: int, company: int, workers: int) -> int:
    """Return the size of the groups in which calls run again after `suspects` of them were in a worker that died.

    Args:
        suspects: how many were running in it.
        company: the group size that was already asked for; 0: none.
        workers: how many groups can run at the same time.
    """
    size = suspects if not company else min(suspects, company)
    return max(1, size // max(2, workers))

"""Several stations in one process, for clusters that have fewer places than there are workers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from paragent._faults import message_of
from paragent.engines.station.station import serve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.engines.station.orders import Posting

__all__ = ["host"]


def host(postings: Sequence[Posting]) -> dict[str, str]:
    """Serve every posting until all have ended; return how each did, by name."""
    endings: dict[str, str] = {}

    def keep(posting: Posting) -> None:
        try:
            endings[posting.name] = serve(posting)
        except BaseException as error:  # noqa: BLE001 - one station's failure must not keep the others from being reported
            endings[posting.name] = f"{type(error).__name__}: {message_of(error)}"

    threads = []
    for posting in postings[1:]:
        thread = threading.Thread(target=keep, args=(posting,), name=posting.name)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no room for another thread
            endings[posting.name] = f"no thread for this worker: {error}"
        else:
            threads.append(thread)
    for posting in postings[:1]:
        keep(posting)
    for thread in threads:
        thread.join()
    return endings

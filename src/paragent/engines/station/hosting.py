"""Several stations in one process, for clusters that have fewer places than there are workers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

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
        except Exception as error:  # noqa: BLE001 - one station's failure must not keep the others from being reported
            endings[posting.name] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=keep, args=(posting,), name=posting.name) for posting in postings[1:]]
    for thread in threads:
        thread.start()
    for posting in postings[:1]:
        keep(posting)
    for thread in threads:
        thread.join()
    return endings

"""`Pacing`: decides which groups are admitted and delivered, so that no group becomes too stale. Does no I/O.

A group is admitted at a version of the policy and must be delivered before more than `max_staleness` further versions are
published. The trainer takes at least `groups_per_version` groups between two versions. So at each version there is a known
number of deliveries before the next one, and the groups that have to be delivered by a version must not be more than the
deliveries up to it. Admission and delivery keep that true; nothing is discarded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Pacing"]


class Pacing:
    """The admitted groups that are not delivered, and the deliveries of the current version.

    Args:
        max_staleness: how many versions may be published between the admission and the delivery of a group.
        groups_per_version: how many groups the trainer takes at least between two versions.
        version: the current version.
        delivered: the groups that were delivered with this version.
    """

    def __init__(self, max_staleness: int, groups_per_version: int, version: int = 0, delivered: int = 0) -> None:
        self._max_staleness, self._per_version = max_staleness, groups_per_version
        self.version = version
        self.delivered = delivered
        """Groups that were delivered since the current version was published."""
        self._due: dict[str, int] = {}
        """The last version at which each admitted group may be delivered, in the order of admission."""

    @property
    def undelivered(self) -> int:
        """The number of admitted groups that are not delivered."""
        return len(self._due)

    def may_admit(self) -> bool:
        """Return whether a group may be admitted: it can be delivered in time even if all others are delivered before it."""
        return len(self._due) < self._deliveries_before(self.version + self._max_staleness + 1)

    def admit(self, group: str, version: int | None = None) -> None:
        """Count an admitted group; `version` is that of its admission, if it was admitted before this process started."""
        self._due[group] = (self.version if version is None else version) + self._max_staleness

    def remove(self, group: str) -> None:
        """Count a group no more that will not be delivered."""
        self._due.pop(group, None)

    def next_delivery(self, finished: Iterable[str]) -> str | None:
        """Return the finished group to deliver next; None if there is none, or an older group has to be delivered before."""
        ready = sorted((self._due[group], number, group) for number, group in enumerate(finished))
        return ready[0][2] if ready and self._may_deliver(ready[0][0]) else None

    def deliver(self, group: str) -> None:
        """Count a delivery."""
        self.remove(group)
        self.delivered += 1

    def redeliver(self, group: str, version: int) -> None:
        """Count a delivered group as undelivered again."""
        self.admit(group, version)
        self.delivered = max(0, self.delivered - 1)

    def publish(self, version: int) -> bool:
        """Count a new version; return whether all groups can still be delivered in time.

        They cannot if the trainer has taken fewer than `groups_per_version` groups since the last version. Publishing the
        current version again changes nothing.
        """
        if version == self.version:
            return True
        self.version, self.delivered = version, 0
        return all(
            sum(due <= last for due in self._due.values()) <= self._deliveries_before(last + 1)
            for last in set(self._due.values())
        )

    def _deliveries_before(self, version: int) -> int:
        """Return how many groups the trainer takes at least before a later version is published."""
        now = max(0, self._per_version - self.delivered)
        return max(0, now + (version - self.version - 1) * self._per_version)

    def _may_deliver(self, due: int) -> bool:
        """Return whether, after a delivery of a group that is due at a version, those that are due earlier are in time."""
        if self.delivered >= self._per_version:
            return True  # the deliveries before the next versions stay the same
        earlier = sorted(one for one in self._due.values() if one < due)
        return all(number < self._deliveries_before(last + 1) for number, last in enumerate(earlier, 1))

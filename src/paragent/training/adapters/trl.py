"""Adapter for TRL: a rollout worker for its `AsyncGRPOTrainer` (`trl.experimental.async_grpo`)."""

from __future__ import annotations

import contextlib
import hashlib
import queue
import statistics
import threading
import time
from collections import Counter
from importlib import import_module
from typing import TYPE_CHECKING, Any

from paragent.errors import ServiceStopped, TokensMissing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paragent.training.client import Group, RemoteRolloutService
    from paragent.training.service import RolloutService

__all__ = ["TrlRolloutWorker", "TrlWeightTransfer"]

_POLL_SECONDS = 1.0
"""Seconds after which the thread that fetches groups looks whether it has to stop."""
_UNTRAINED_VERSIONS = 2
"""How many versions are published until a sample that the trainer has taken is certainly trained: the trainer fetches one
batch in advance, so a sample may belong to the step after the next version."""


class _Buffer(queue.Queue[Any]):
    """The queue that the trainer reads. Counts what it has taken, by group.

    It holds one sample. So the next group is requested from the service when the trainer needs it, and the service knows how far
    the trainer is.
    """

    def __init__(self) -> None:
        super().__init__(maxsize=1)
        self.taken: Counter[int] = Counter()

    def _get(self) -> Any:
        sample = super()._get()
        self.taken[sample.group_id] += 1
        return sample


class TrlRolloutWorker:
    """Gives the groups of a service to `AsyncGRPOTrainer(rollout_worker=...)`. Implements its `RolloutWorkerProtocol`.

    The trainer's own reward functions, tools and environments are not used. The advantage of a sample is its reward minus the
    mean of its group, divided by the standard deviation, as TRL computes it; all samples of an attempt have the same.

    The trainer does not say which samples it has trained. A group is accepted when all its samples were taken and two further
    versions were published, which is later than their training. After a crash, a trainer that continues from its checkpoint may
    therefore train the last groups twice.

    Args:
        service: the service, which is open. The trainer discards samples that are staler than its `max_staleness`; that of the
            service must be lower, because a version may be published between the delivery of a group and its use.
    """

    def __init__(self, service: RolloutService | RemoteRolloutService) -> None:
        self._service = service
        self._sample_type = import_module("trl.experimental.async_grpo.async_rollout_worker").RolloutSample
        self._buffer = _Buffer()
        self.rollout_buffer: queue.Queue[Any] = self._buffer
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self._open: dict[int, Group] = {}
        """The groups that are in the buffer or with the trainer."""
        self._trained_at: dict[int, int] = {}
        """The version at which each group whose samples were all taken may be accepted."""
        self._changing = threading.Lock()
        """Protects `_open` and `_trained_at`, which the thread and the trainer change."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._last_group = time.monotonic()

    def start(self) -> None:
        """Begin to fetch groups."""
        self._stopping.clear()
        self._last_group = time.monotonic()
        self._thread = threading.Thread(target=self._fetch, name="paragent-trl", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Fetch no more groups. The service stays open; groups that were not accepted stay owed."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(60)
            self._thread = None

    def update_model_version(self, model_version: int) -> None:
        """Publish a version, let paused rollouts go on, and accept the groups that are trained by now."""
        self._service.published(model_version)
        self._service.resume()
        with self._changing:
            for number, group in self._open.items():
                if self._buffer.taken[number] >= len(group.samples):
                    self._trained_at.setdefault(number, model_version + _UNTRAINED_VERSIONS - 1)
            trained = [number for number, version in self._trained_at.items() if version <= model_version]
            groups = [self._open.pop(number) for number in trained]
            for number in trained:
                del self._trained_at[number], self._buffer.taken[number]
        for group in groups:
            group.accept()

    def check_health(self, stale_after_s: float) -> None:
        """Raise if there will be no more groups, or if none came for so many seconds.

        Raises:
            RuntimeError: as said.
        """
        if self._error is not None:
            raise RuntimeError(f"the rollout service delivers no more groups: {self._error}") from self._error
        silent = time.monotonic() - self._last_group
        if silent > stale_after_s:
            raise RuntimeError(f"no group was finished for {silent:.0f} s; the service says: {self._service.status()}")

    def _fetch(self) -> None:
        try:
            while not self._stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    group = self._service.next_group(_POLL_SECONDS)
                    if group is None:
                        raise ServiceStopped(
                            "all tasks that were added are delivered; add more tasks, or lower max_steps"
                        )
                    self._put(group)
        except Exception as error:  # noqa: BLE001 - the trainer gets it from check_health
            self._error = error

    def _put(self, group: Group) -> None:
        number = int.from_bytes(hashlib.sha256(group.id.encode()).digest()[:7], "big")
        samples = list(self._samples(group, number))
        with self._changing:
            self._open[number] = group
        self._last_group = time.monotonic()
        for sample in samples:
            while not self._stopping.is_set():
                with contextlib.suppress(queue.Full):
                    self._buffer.put(sample, timeout=_POLL_SECONDS)
                    break
        self.metrics_queue.put({"rollout/groups_total": 1.0, "rollout/staleness": float(group.staleness)})

    def _samples(self, group: Group, number: int) -> Iterator[Any]:
        deviation = statistics.pstdev(group.rewards)
        for sample, advantage in zip(group.samples, group.advantages(), strict=True):
            if sample.logprobs is None:
                raise TokensMissing("TRL needs log probabilities, and the endpoint returned none: request `logprobs`")
            arrays = sample.arrays()
            yield self._sample_type(
                prompt=[{"role": "user", "content": str(group.task["question"])}],
                completion=[],
                input_ids=arrays["token_ids"].astype("int64"),
                completion_mask=arrays["mask"].astype("int64"),
                old_log_probs=arrays["logprobs"].astype("float32"),
                advantage=advantage,
                model_version=min(sample.versions, default=group.version),
                group_id=number,
                metrics={"reward": sample.reward, "reward_std": deviation},
                enqueued_at=time.time(),
            )


class TrlWeightTransfer:
    """Pauses the rollouts while the trainer changes the weights, so that each turn has the version that sampled it.

    Pass it as `weight_transfer` to `AsyncGRPOTrainer`. Without it, turns that are sampled between the change of the weights and
    the publication of their version have the version before.

    Args:
        service: the service.
        transfer: what transfers the weights, such as TRL's `WeightTransferClient`; None: nothing is transferred, because the
            endpoint gets the weights in another way.
    """

    def __init__(self, service: RolloutService | RemoteRolloutService, transfer: Any = None) -> None:
        self._service, self._transfer = service, transfer

    def init_weight_transfer(self) -> None:
        """Set up the transfer."""
        if self._transfer is not None:
            self._transfer.init_weight_transfer()

    def pause(self) -> None:
        """Wait until no request is in flight, then pause the endpoint."""
        self._service.pause()
        if self._transfer is not None:
            self._transfer.pause()

    def send_weights(self, iterator: Iterator[Any]) -> None:
        """Send the weights. All are read in any case, because all ranks take part in reading them."""
        if self._transfer is not None:
            self._transfer.send_weights(iterator)
        for _ in iterator:
            pass

    def resume(self) -> None:
        """Resume the endpoint. Rollouts go on when the version is published."""
        if self._transfer is not None:
            self._transfer.resume()

    def destroy(self) -> None:
        """Release the transfer."""
        if self._transfer is not None:
            self._transfer.destroy()

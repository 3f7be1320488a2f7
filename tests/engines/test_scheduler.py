"""The scheduler: limits are kept, no call is lost, the order holds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paragent.engines._scheduler import CallDuration, CallScheduler, ConcurrencyLimits, WorkerLoad, max_held
from paragent.engines.base import Call
from paragent.execution import Ending, Outcome
from paragent.serialization import Payload

TARGET = Payload(b"", {})


def call(number: int, *, is_async: bool = False, max_group: int = 0) -> Call:
    return Call(number, TARGET, None, str(number), is_async=is_async, max_group=max_group)


def end(
    worker: WorkerLoad, number: int, ending: Ending = Ending.RETURNED, seconds: float = 0.0
) -> tuple[list[float], list[float]]:
    return worker.remove([Outcome(number, ending, seconds=seconds)])


def test_few_calls_are_distributed_over_all_workers() -> None:
    scheduler = CallScheduler(ConcurrencyLimits(1, 1000, shared=False))
    scheduler.add([call(i, is_async=True) for i in range(4)])
    workers = [WorkerLoad(), WorkerLoad(), WorkerLoad(), WorkerLoad()]
    assert sorted(len(calls) for _, calls in scheduler.assign(workers)) == [1, 1, 1, 1]


def test_workers_prefetch_nothing_until_calls_are_known_to_be_short() -> None:
    scheduler = CallScheduler(ConcurrencyLimits(1, 1, shared=True))
    scheduler.add([call(i) for i in range(100)])
    worker = WorkerLoad()
    scheduler.assign([worker])
    assert len(worker.calls) == 1
    scheduler.observe(end(worker, next(iter(worker.calls)), seconds=0.0001))
    scheduler.assign([worker])
    assert len(worker.calls) > 50


def test_displaced_calls_do_not_count_as_durations() -> None:
    scheduler = CallScheduler(ConcurrencyLimits(1, 1, shared=True))
    scheduler.observe(([1.0], []))
    scheduler.add([call(i) for i in range(100)])
    worker = WorkerLoad()
    for _ in range(50):
        scheduler.assign([worker])
        scheduler.observe(end(worker, next(iter(worker.calls)), Ending.DISPLACED))
    scheduler.assign([worker])
    assert len(worker.calls) == 1


def test_a_queue_of_one_kind_leaves_room_for_the_other_kind() -> None:
    scheduler = CallScheduler(ConcurrencyLimits(1, 1000, shared=False))
    assert scheduler.has_room() == (True, True)
    scheduler.add([call(1), call(2), call(3, is_async=True)])
    scheduler.assign([WorkerLoad()])
    assert scheduler.has_room() == (False, True)


def test_a_grouped_call_that_waits_for_an_empty_worker_leaves_room_in_others() -> None:
    scheduler = CallScheduler(ConcurrencyLimits(2, 2, shared=True))
    workers = [WorkerLoad(), WorkerLoad()]
    for number, worker in enumerate(workers):
        worker.add([call(number)])
    scheduler.add([call(10, max_group=1)])
    scheduler.assign(workers)
    assert len(scheduler) == 1
    assert scheduler.has_room() == (True, True)


def test_calls_that_free_workers_can_run_are_not_prefetched() -> None:
    scheduler = CallScheduler(ConcurrencyLimits(2, 2, shared=True))
    scheduler.observe(([0.0001], []))
    busy, idle = WorkerLoad(), WorkerLoad()
    busy.add([call(1), call(2)])
    scheduler.add([call(3), call(4)])
    scheduler.assign([busy, idle])
    assert sorted(idle.calls) == [3, 4]


def test_grouped_calls_have_a_worker_to_themselves() -> None:
    scheduler = CallScheduler(ConcurrencyLimits(10, 10, shared=True))
    workers = [WorkerLoad(), WorkerLoad()]
    scheduler.add([call(i, max_group=2) for i in range(3)] + [call(i) for i in range(10, 20)])
    scheduler.assign(workers)
    groups = [sorted(worker.calls) for worker in workers]
    assert sorted(groups) == [[0, 1], [2]]
    for number in (0, 1):
        end(next(worker for worker in workers if number in worker.calls), number)
    scheduler.assign(workers)
    assert sorted(len(worker.calls) for worker in workers) == [1, 10]


def test_a_worker_is_kept_free_for_queued_grouped_calls() -> None:
    scheduler = CallScheduler(ConcurrencyLimits(2, 2, shared=True))
    workers = [WorkerLoad(), WorkerLoad()]
    scheduler.add([call(i) for i in range(4)])
    scheduler.assign(workers)
    scheduler.add([call(9, max_group=1), *(call(i) for i in range(20, 40))])
    first = workers[0]
    for number in list(first.calls):
        end(first, number)
        scheduler.assign(workers)
    assert list(first.calls) == [9]


def test_a_single_use_worker_gets_no_second_call() -> None:
    scheduler = CallScheduler(ConcurrencyLimits(1, 1, shared=True, single_use=True))
    scheduler.add([call(1), call(2)])
    worker = WorkerLoad()
    scheduler.assign([worker])
    end(worker, 1)
    assert scheduler.assign([worker]) == []


def test_a_worker_is_overfull_only_while_another_is_idle() -> None:
    scheduler = CallScheduler(ConcurrencyLimits(1, 1, shared=True))
    full, idle = WorkerLoad(), WorkerLoad()
    full.add([call(1), call(2)])
    assert scheduler.overfull([full, idle]) == [full]
    idle.add([call(3)])
    assert scheduler.overfull([full, idle]) == []


@given(st.lists(st.floats(0, 100), min_size=1), st.integers(1, 1000))
def test_prefetch_is_bounded(seconds: list[float], limit: int) -> None:
    duration = CallDuration()
    duration.observe(seconds)
    assert 0 <= duration.prefetch(limit) <= max_held(limit) - limit


class SchedulerMachine(RuleBasedStateMachine):
    """Random arrivals and endings on three workers."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = ConcurrencyLimits(2, 5, shared=False)
        self.scheduler = CallScheduler(self.limits)
        self.workers = [WorkerLoad() for _ in range(3)]
        self.added = 0
        self.assigned: list[int] = []
        self.ended = 0

    @rule(count=st.integers(1, 8), is_async=st.booleans(), max_group=st.sampled_from([0, 0, 0, 1, 2]))
    def arrive(self, count: int, is_async: bool, max_group: int) -> None:
        self.scheduler.add([call(self.added + i, is_async=is_async, max_group=max_group) for i in range(count)])
        self.added += count

    @rule()
    def assign(self) -> None:
        for worker, calls in self.scheduler.assign(self.workers):
            self.assigned += [c.number for c in calls]
            smallest = min((c.max_group for c in worker.calls.values() if c.max_group), default=0)
            assert not smallest or len(worker.calls) <= smallest

    @rule(which=st.integers(0, 2), seconds=st.floats(0.5, 2.0))
    def end(self, which: int, seconds: float) -> None:
        worker = self.workers[which]
        if worker.calls:
            self.scheduler.observe(end(worker, next(iter(worker.calls)), seconds=seconds))
            self.ended += 1

    @invariant()
    def no_call_is_lost_or_assigned_twice(self) -> None:
        held = sum(len(worker.calls) for worker in self.workers)
        assert self.added == len(self.scheduler) + held + self.ended
        assert len(set(self.assigned)) == len(self.assigned)

    @invariant()
    def no_worker_holds_more_than_the_limit(self) -> None:
        for worker in self.workers:
            assert worker.counts[False] <= self.limits.sync
            assert worker.counts[True] <= self.limits.asynchronous

    def teardown(self) -> None:
        for _ in range(self.added + 1):
            self.assign()
            for which in range(3):
                while self.workers[which].calls:
                    self.end(which, 1.0)
        assert self.ended == self.added, "some calls would never be assigned"


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

"""`RolloutQueue`: which rollouts start, and when."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paragent._internal.clock import ManualClock
from paragent.rollout.live_status import RunState
from paragent.rollout.queue import RolloutQueue, key_of
from paragent.store import PendingRollout
from paragent.tasks import BenchmarkTask


def rollouts(number: int) -> list[PendingRollout]:
    return [PendingRollout(BenchmarkTask(f"t{n}", "?", "42"), 1) for n in range(number)]


def test_retries_start_when_they_are_due_and_before_other_rollouts() -> None:
    clock = ManualClock()
    queue = RolloutQueue(iter(rollouts(3)), 1, clock)
    [(first, rollout)] = queue.take(10)
    queue.end(first)
    queue.retry_later(rollout, 5.0)
    assert queue.seconds_to_retry == 5.0
    [(second, other)] = queue.take(10)
    assert other.task.id == "t1"
    queue.end(second)
    clock.advance(5.0)
    [(_, again)] = queue.take(10)
    assert again is rollout
    assert queue.has_more


def test_the_state_follows_from_what_users_asked_for() -> None:
    queue = RolloutQueue(iter(rollouts(3)), 2)
    states = [queue.state]
    ids = [task_id for task_id, _ in queue.take(10)]
    queue.paused = True
    states.append(queue.state)
    for task_id in ids:
        queue.end(task_id)
    states.append(queue.state)
    assert queue.has_more
    assert list(queue.take(10)) == []
    queue.stopped = "a reason"
    states.append(queue.state)
    assert states == [RunState.RUNNING, RunState.PAUSING, RunState.PAUSED, RunState.STOPPING]
    assert not queue.has_more


@given(st.integers(0, 20), st.integers(1, 5), st.integers(0, 5))
def test_no_more_rollouts_start_than_the_limit_and_the_engine_allow(total: int, limit: int, room: int) -> None:
    queue = RolloutQueue(iter(rollouts(total)), limit)
    assert len(list(queue.take(room))) == min(total, limit, room)


class Queue(RuleBasedStateMachine):
    """Users cancel, retry, pause and change the limit while rollouts start and end."""

    TOTAL = 12

    def __init__(self) -> None:
        super().__init__()
        self.all = rollouts(self.TOTAL)
        self.queue = RolloutQueue(iter(self.all), 3)
        self.executions: Counter[str] = Counter()
        self.expected = Counter({one.task.id: 1 for one in self.all})
        self.ended: set[str] = set()

    @rule(room=st.integers(0, 6))
    def start(self, room: int) -> None:
        paused = self.queue.paused
        started = list(self.queue.take(room))
        assert not (paused and started)
        for _, rollout in started:
            self.executions[rollout.task.id] += 1
            assert rollout.task.id not in self.ended

    @precondition(lambda self: self.queue.active)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        task_id = data.draw(st.sampled_from(sorted(self.queue.active)))
        self.ended.add(self.queue.active[task_id].task.id)
        self.queue.end(task_id)

    @rule(number=st.integers(0, TOTAL - 1))
    def cancel(self, number: int) -> None:
        rollout = self.all[number]
        if rollout.task.id not in self.ended and not self.queue.is_active(key_of(rollout)):
            self.queue.drop(key_of(rollout))
            self.ended.add(rollout.task.id)
            self.expected[rollout.task.id] -= 1

    @rule(number=st.integers(0, TOTAL - 1))
    def retry(self, number: int) -> None:
        rollout = self.all[number]
        if rollout.task.id in self.ended:
            self.queue.add(rollout)
            self.ended.remove(rollout.task.id)
            self.expected[rollout.task.id] += 1

    @rule(paused=st.booleans(), limit=st.integers(1, 6))
    def change(self, paused: bool, limit: int) -> None:
        self.queue.paused, self.queue.limit = paused, limit

    @invariant()
    def no_rollout_is_under_way_twice(self) -> None:
        active = Counter(one.task.id for one in self.queue.active.values())
        assert all(count == 1 for count in active.values())

    def teardown(self) -> None:
        """When nothing is paused any more, every rollout is executed as often as it was asked for."""
        self.queue.paused, self.queue.limit = False, self.TOTAL
        while self.queue.has_more or self.queue.active:
            self.start(self.TOTAL)
            for task_id in list(self.queue.active):
                self.ended.add(self.queue.active[task_id].task.id)
                self.queue.end(task_id)
        assert +self.executions == +self.expected


TestQueue = Queue.TestCase

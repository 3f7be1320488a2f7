"""Every call gets exactly one response, whatever outcomes the engine reports, and executions are counted fairly."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from paragent._internal.clock import ManualClock
from paragent.config import RunConfig
from paragent.engines import Call, RuntimeEngine
from paragent.execution import Ending, Outcome
from paragent.runners.dispatch import DispatchLoop
from paragent.runners.retry import smaller_group
from paragent.serialization import Payload
from paragent.tasks import ErrorInfo, Task, TaskResponse, TaskStatus

TARGET = Payload(b"", {})


def call_for(engine: RuntimeEngine, name: str = "t", max_retries: int | None = None, accepted: float = 0.0) -> Call:
    task = Task(1, id=name, max_retries=max_retries)
    return Call(next(engine.numbers), TARGET, 1, name, task=task, accepted=accepted)


def calls_for(engine: RuntimeEngine, count: int, max_retries: int | None = None) -> list[Call]:
    return [call_for(engine, str(number), max_retries) for number in range(count)]


def take(dispatcher: DispatchLoop) -> list[TaskResponse]:
    dispatcher.collect(0.0)
    responses = list(dispatcher.ready.values())
    dispatcher.ready.clear()
    return responses


class ScriptedEngine(RuntimeEngine):
    """Ends calls as a script says; when the script is used up, calls return."""

    def __init__(self, script: Sequence[Outcome]) -> None:
        super().__init__(RunConfig(worker_num=1, concurrency=4))
        self.script = list(script)
        self.calls: list[Call] = []
        self.waiting: list[Call] = []

    def submit(self, calls: Sequence[Call]) -> None:
        self.calls += calls
        self.waiting += calls

    def wait(self, timeout: float) -> list[Outcome]:
        done = []
        for call in self.waiting:
            said = self.script.pop(0) if self.script else Outcome(0, Ending.RETURNED)
            done.append(Outcome(call.number, said.ending, error=said.error, alone=said.alone, seconds=1.0))
        self.waiting = []
        return done

    def cancel(self, grace: float) -> None:
        self.script = [Outcome(0, Ending.CANCELLED)] * len(self.waiting)

    def close(self) -> None:
        self.waiting = []


def outcome(ending: Ending, *, retryable: bool = True, alone: bool = True) -> Outcome:
    error = ErrorInfo("E", "m", retryable=retryable) if ending in {Ending.RAISED, Ending.LOST} else None
    return Outcome(0, ending, error=error, alone=alone)


def respond_to_one(script: Sequence[Outcome], max_retries: int | None = None) -> tuple[TaskResponse, ScriptedEngine]:
    engine = ScriptedEngine(script)
    dispatcher = DispatchLoop(engine)
    dispatcher.submit([call_for(engine, max_retries=max_retries)])
    responses = []
    while dispatcher.outstanding:
        responses += take(dispatcher)
    [response] = responses
    return response, engine


def test_a_lost_worker_causes_two_retries_by_default() -> None:
    lost = [outcome(Ending.LOST)] * 10
    response, _ = respond_to_one(lost)
    assert (response.executions, response.status) == (3, TaskStatus.LOST)
    response, _ = respond_to_one(lost, max_retries=0)
    assert (response.executions, response.status) == (1, TaskStatus.LOST)
    response, _ = respond_to_one(lost[:4], max_retries=4)
    assert (response.executions, response.status) == (5, TaskStatus.SUCCEEDED)


def test_tasks_without_max_retries_use_those_of_the_run() -> None:
    engine = ScriptedEngine([outcome(Ending.RAISED)] * 10)
    dispatcher = DispatchLoop(engine, max_retries=1)
    dispatcher.submit([call_for(engine, "a"), call_for(engine, "b", max_retries=0)])
    responses = {response.id: response for _ in range(3) for response in take(dispatcher)}
    assert {name: response.executions for name, response in responses.items()} == {"a": 2, "b": 1}


def test_a_retry_after_a_lost_worker_is_alone_in_its_worker() -> None:
    _, engine = respond_to_one([outcome(Ending.LOST)])
    assert [call.max_group for call in engine.calls] == [0, 1]


def test_no_suspect_is_charged_until_it_kills_a_worker_alone() -> None:
    engine = ScriptedEngine([outcome(Ending.LOST, alone=False)] * 4)
    dispatcher = DispatchLoop(engine)
    dispatcher.submit(calls_for(engine, 4, max_retries=0))
    assert take(dispatcher) == []
    assert [call.executions for call in engine.waiting] == [1] * 4
    assert all(1 <= call.max_group < 4 for call in engine.waiting)
    assert {response.status for response in take(dispatcher)} == {TaskStatus.SUCCEEDED}


def test_room_is_what_the_window_of_the_engine_leaves() -> None:
    engine = ScriptedEngine([])
    dispatcher = DispatchLoop(engine)
    assert dispatcher.room == engine.window > 1
    dispatcher.submit(calls_for(engine, engine.window - 1))
    assert dispatcher.room == 1
    dispatcher.submit(calls_for(engine, 2))
    assert dispatcher.room == 0
    take(dispatcher)
    assert dispatcher.room == engine.window


def test_an_error_of_the_task_is_retried_only_on_request() -> None:
    failed = [outcome(Ending.RAISED)] * 10
    assert respond_to_one(failed)[0].executions == 1
    assert respond_to_one(failed, max_retries=2)[0].executions == 3
    assert respond_to_one([outcome(Ending.RAISED, retryable=False)], max_retries=2)[0].executions == 1


def test_a_reached_time_limit_is_not_retried() -> None:
    engine = ScriptedEngine([outcome(Ending.TIMED_OUT)])
    dispatcher = DispatchLoop(engine)
    call = call_for(engine, max_retries=5)
    call.limit = 1.0
    dispatcher.submit([call])
    [response] = take(dispatcher)
    assert (response.executions, response.status) == (1, TaskStatus.TIMED_OUT)


def test_displaced_calls_are_executed_again_and_not_charged() -> None:
    response, engine = respond_to_one([outcome(Ending.DISPLACED)] * 7)
    assert (response.executions, response.status) == (1, TaskStatus.SUCCEEDED)
    assert len(engine.calls) == 8


def test_queue_time_is_the_time_without_work() -> None:
    clock = ManualClock(100.0)
    engine = ScriptedEngine([])
    dispatcher = DispatchLoop(engine, clock=clock)
    dispatcher.submit([call_for(engine, accepted=100.0)])
    clock.advance(5.0)
    [response] = take(dispatcher)
    assert (response.time_cost, response.queue_time) == (1.0, 4.0)


def test_nothing_is_retried_after_cancel() -> None:
    engine = ScriptedEngine([])
    dispatcher = DispatchLoop(engine)
    dispatcher.submit(calls_for(engine, 3, max_retries=5))
    dispatcher.cancel(0.0)
    engine.script = [outcome(Ending.LOST), outcome(Ending.CANCELLED), outcome(Ending.RETURNED)]
    statuses = [response.status for response in take(dispatcher)]
    assert statuses == [TaskStatus.CANCELLED, TaskStatus.CANCELLED, TaskStatus.SUCCEEDED]


def test_abandon_responds_to_everything_at_once() -> None:
    engine = ScriptedEngine([])
    dispatcher = DispatchLoop(engine)
    dispatcher.submit(calls_for(engine, 3))
    dispatcher.abandon(Ending.CANCELLED)
    assert [response.status for response in dispatcher.ready.values()] == [TaskStatus.CANCELLED] * 3
    assert dispatcher.outstanding == 0


endings = st.builds(
    outcome,
    st.sampled_from([ending for ending in Ending if ending not in {Ending.CANCELLED, Ending.TIMED_OUT}]),
    retryable=st.booleans(),
    alone=st.booleans(),
)


@settings(max_examples=200)
@given(st.lists(endings, max_size=60), st.integers(1, 20), st.none() | st.integers(0, 3))
def test_every_call_gets_exactly_one_response(script: list[Outcome], count: int, max_retries: int | None) -> None:
    engine = ScriptedEngine(script)
    dispatcher = DispatchLoop(engine)
    dispatcher.submit(calls_for(engine, count, max_retries))
    responses = []
    for _ in range(len(script) + 2):
        responses += take(dispatcher)
    assert dispatcher.outstanding == 0
    assert sorted(response.id for response in responses) == sorted(map(str, range(count)))
    allowed = 2 if max_retries is None else max_retries
    assert all(1 <= response.executions <= allowed + 1 for response in responses)
    assert len({call.number for call in engine.calls}) == len(engine.calls)


def test_calls_are_pickled_without_the_fields_of_the_dispatch_loop() -> None:
    engine = ScriptedEngine([])
    call = call_for(engine, accepted=3.0)
    copy = pickle.loads(pickle.dumps(call))
    assert (copy.number, copy.label, copy.argument) == (call.number, call.label, call.argument)
    assert (copy.task, copy.accepted, copy.executions) == (None, 0.0, 1)


@given(st.integers(2, 100_000), st.integers(0, 100_000), st.integers(1, 64))
def test_groups_of_suspects_shrink_to_one_in_few_steps(suspects: int, max_group: int, workers: int) -> None:
    steps = 0
    most = math.ceil(math.log(suspects, max(2, workers))) + 1
    while suspects > 1:
        smaller = smaller_group(suspects, max_group, workers)
        assert 1 <= smaller < suspects
        suspects = max_group = smaller
        steps += 1
    assert steps <= most

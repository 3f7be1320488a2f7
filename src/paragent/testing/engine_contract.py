"""The contract of engines as a pytest suite: subclass it, set the engine, and let pytest collect it.

::

    class TestMyEngine(IsolationContract):
        settings = {"engine_name": "mine"}
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

from paragent.config import RunConfig
from paragent.engines import open_engine
from paragent.errors import DuplicateTaskId, Interrupted, Unserialisable
from paragent.runners import Runners
from paragent.tasks import Task, TaskResponse, TaskStatus
from paragent.testing import agents, programs

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["EngineContract", "IsolationContract"]


class EngineContract:
    """The guarantees of every engine, including one that runs tasks in the program's own process."""

    settings: ClassVar[Mapping[str, Any]] = {}
    """Keyword arguments of the RunConfig that selects the engine; their `repr` must be valid Python."""

    def config(self, **settings: Any) -> RunConfig:
        """Return a configuration for two workers on the engine under test."""
        return RunConfig(**{"worker_num": 2, **self.settings, **settings})

    def run(self, *tasks: Task, **settings: Any) -> dict[str, TaskResponse]:
        """Run tasks on the engine under test."""
        return Runners.sync_run_task(list(tasks), self.config(**settings))

    def run_warm(self, *tasks: Task, **settings: Any) -> dict[str, TaskResponse]:
        """Run tasks in a worker that has already run one: importing modules counts against the time limit."""
        config = self.config(worker_num=1, **settings)
        with open_engine(config) as engine:
            Runners.sync_run(0.0, agents.nap, config, engine=engine)
            return Runners.sync_run_task(list(tasks), config, engine=engine)

    # --- one response for each task -----------------------------------------------------------------------------------

    def test_responses_are_keyed_by_id_in_input_order(self) -> None:
        waits = [0.2, 0.0, 0.1, 0.0, 0.05]
        responses = self.run(*(Task(wait, agents.nap, id=f"t{i}") for i, wait in enumerate(waits)))
        assert list(responses) == ["t0", "t1", "t2", "t3", "t4"]
        assert [response.answer for response in responses.values()] == waits
        assert all(
            response.status is TaskStatus.SUCCEEDED and response.executions == 1 for response in responses.values()
        )

    def test_falsy_answers_are_returned(self) -> None:
        falsy: list[Any] = [None, 0, "", [], {}, False, 0.0, ()]
        responses = self.run(*(Task(value, agents.echo, id=str(i)) for i, value in enumerate(falsy)))
        assert [(response.success, response.answer) for response in responses.values()] == [(True, v) for v in falsy]

    def test_a_response_has_worker_times_and_metadata(self) -> None:
        response = self.run(Task(0.2, agents.sleep, id="a", name="nap", metadata={"k": 1}))["a"]
        assert 0.2 <= response.time_cost < 20
        assert response.queue_time >= 0
        assert response.worker.rpartition(":")[2].isdigit()
        assert len(response.trace_id) == 32
        assert (response.name, response.metadata, response.msg, response.error) == ("nap", {"k": 1}, "", None)

    def test_many_tasks_all_have_a_response(self) -> None:
        responses = self.run(*(Task(i, agents.echo, id=str(i)) for i in range(3000)))
        assert [response.answer for response in responses.values()] == list(range(3000))

    def test_answers_keep_their_type(self) -> None:
        responses = self.run(
            Task(agents.PlanePoint(1, 2), agents.echo, id="p"),
            Task({"k": [agents.PlanePoint(3, 4)]}, agents.echo, id="q"),
        )
        assert responses["p"].answer == agents.PlanePoint(1, 2)
        assert isinstance(responses["q"].answer["k"][0], agents.PlanePoint)

    def test_errors_inside_an_answer_keep_their_class(self) -> None:
        response = self.run(Task(1, agents.answer_with_errors, id="a"))["a"]
        assert response.success, response.msg
        rejected, not_found = response.answer
        assert type(rejected) is agents.DetailedError
        assert (str(rejected), rejected.code, rejected.detail) == ("7: because", 7, "because")
        assert rejected.__notes__[0] == "a note"
        assert "stream" in rejected.__notes__[1], (
            "an attribute that cannot be serialised is left out and named in a note"
        )
        assert repr(rejected.__cause__) == "ValueError('root')"
        assert (type(not_found).__name__, not_found.code, not_found.filename) == ("HTTPError", 404, "http://host")

    def test_large_inputs_and_answers_are_transferred(self) -> None:
        payload = os.urandom(1 << 20) * 20
        response = self.run(Task(payload, agents.echo, id="big"))["big"]
        assert response.answer == payload

    def test_an_empty_list_of_tasks_has_no_responses(self) -> None:
        assert self.run() == {}

    def test_duplicate_ids_are_rejected_before_anything_runs(self, tmp_path: Path) -> None:
        marker = tmp_path / "ran"
        with raises(DuplicateTaskId, "same"):
            self.run(Task((str(marker), 1), agents.fail_until, id="same"), Task(1, agents.echo, id="same"))
        assert not marker.exists()

    def test_each_task_gets_a_fresh_copy_of_the_agent(self) -> None:
        agent = agents.Counter("c")
        responses = self.run(*(Task(i, agent, id=str(i)) for i in range(10)))
        assert [response.answer for response in responses.values()] == [[i, 1] for i in range(10)]
        assert agent.calls == 0

    def test_usage_and_trajectory_are_returned(self) -> None:
        response = self.run(Task(3, agents.record_notes, id="a"))["a"]
        assert response.usage == {"tokens": 30}
        assert response.trajectory == [{"step": 0}, {"step": 1}, {"step": 2}]

    def test_responses_have_the_same_fields_as_on_the_local_engine(self, tmp_path: Path) -> None:
        """Everything except times, locations and trace ids is the same on every engine."""
        ours = self._fields(tmp_path / "ours", self.settings)
        local = self._fields(tmp_path / "local", {"engine_name": "local"})
        for task_id, fields in local.items():
            assert ours[task_id] == fields

    def _fields(self, folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the responses to tasks that end in all possible ways, by task id."""
        folder.mkdir()
        responses = Runners.sync_run_task(
            self.tasks_that_end_in_every_way(folder), RunConfig(**{**settings, "worker_num": 1, "concurrency": 4})
        )
        responses |= self._cancelled(folder / "began", RunConfig(**{**settings, "worker_num": 1, "concurrency": 2}))
        return {task_id: comparable(response) for task_id, response in responses.items()}

    def tasks_that_end_in_every_way(self, folder: Path) -> list[Task]:
        """Return tasks that end in all possible ways; the id of each says how."""
        return [
            Task({"k": [1]}, agents.echo, id="answer", name="a name", metadata={"k": "v"}),
            Task(2, agents.record_notes, id="notes"),
            Task("boom", agents.fail, id="error"),
            Task("boom", agents.fail, id="error after retries", max_retries=2),
            Task(0, agents.exit_in_a_subtask, id="exit"),
            Task(0, agents.answer_with_a_lock, id="unserialisable answer"),
            Task(0, agents.answer_that_exits_when_read, id="unreadable answer"),
            Task(str(folder / "cleaned"), agents.clean_up_when_cancelled, id="async time limit", timeout=0.4),
            Task(60.0, agents.sleep, id="sync time limit", timeout=0.4),
        ]

    def _cancelled(self, path: Path, config: RunConfig) -> dict[str, TaskResponse]:
        """Interrupt a run while a sync and an async task run and a third is queued."""
        interrupted_once: list[bool] = []

        def interrupt(_: Any) -> None:
            if len(programs.pids_in(path)) == 2 and not interrupted_once:
                interrupted_once.append(True)
                raise KeyboardInterrupt

        tasks = [
            Task(str(path), agents.clean_up_when_cancelled, id="async cancelled"),
            Task(str(path), agents.hang_in_python, id="sync cancelled"),
            Task(0, agents.echo, id="cancelled before its start"),
        ]
        try:
            Runners.sync_run_task(tasks, config.with_settings(progress=interrupt))
        except Interrupted as interrupted:
            return interrupted.responses
        raise AssertionError("the run was not interrupted")

    # --- exceptions ---------------------------------------------------------------------------------------------------

    def test_an_exception_fails_only_its_task(self) -> None:
        responses = self.run(
            *(Task("boom" if i == 5 else "ok", agents.fail if i == 5 else agents.shout, id=str(i)) for i in range(10))
        )
        failed = responses.pop("5")
        assert failed.status is TaskStatus.FAILED
        assert not failed.success
        assert failed.error is not None
        assert (failed.error.type, failed.error.message) == ("ValueError", "boom")
        assert "in fail" in failed.error.traceback
        assert "ValueError: boom" in failed.msg
        assert all(response.answer == "OK" for response in responses.values())

    def test_a_failure_is_retried_only_if_configured(self, tmp_path: Path) -> None:
        once, thrice = str(tmp_path / "once"), str(tmp_path / "thrice")
        responses = self.run(
            Task((once, 3), agents.fail_until, id="once"),
            Task((thrice, 3), agents.fail_until, id="thrice", max_retries=5),
        )
        assert (responses["once"].status, responses["once"].executions) == (TaskStatus.FAILED, 1)
        assert (responses["thrice"].answer, responses["thrice"].executions) == (3, 3)

    def test_sys_exit_inside_a_subtask_fails_only_its_task(self) -> None:
        """`sys.exit` and KeyboardInterrupt normally stop an event loop; the loop of a worker continues for the other tasks."""
        responses = self._among_neighbours(
            Task(0, agents.exit_in_a_subtask, id="exit"),
            Task(0, agents.interrupt_in_a_subtask, id="interrupt"),
            Task("kept", agents.leave_a_subtask_that_exits, id="left"),
        )
        assert (responses["exit"].status, error_type(responses["exit"])) == (TaskStatus.FAILED, "SystemExit")
        assert (responses["interrupt"].status, error_type(responses["interrupt"])) == (
            TaskStatus.FAILED,
            "KeyboardInterrupt",
        )
        assert responses["left"].answer == "kept"

    def test_objects_whose_methods_raise_fail_only_their_task(self) -> None:
        responses = self._among_neighbours(
            Task("hidden", agents.fail_with_hidden_attributes, id="error"),
            Task("own", agents.fail_with_own_text, id="text"),
            Task(0, agents.answer_that_hides_its_attributes, id="answer"),
            Task(0, agents.answer_that_exits, id="exits"),
        )
        assert all(response.status is TaskStatus.FAILED for response in responses.values()), responses
        assert "hidden" in responses["error"].msg
        assert "_HidingError" in error_type(responses["error"])
        assert responses["text"].msg.endswith("Failure: own")
        assert "answer" in responses["answer"].msg
        assert error_type(responses["exits"]) == "SystemExit"

    def test_usage_and_logs_of_local_subclasses_are_returned_as_builtins(self, caplog: Any) -> None:
        responses = self._among_neighbours(
            Task(3, agents.record_own_number, id="usage"), Task("own", agents.log_with_own_level, id="log")
        )
        assert (responses["usage"].answer, responses["usage"].usage) == (3, {"tokens": 3})
        assert type(responses["usage"].usage["tokens"]) is int
        assert responses["log"].answer == "own"
        assert any("logged own" in record.getMessage() for record in caplog.records if record.name == "contract")

    def _among_neighbours(self, *tasks: Task) -> dict[str, TaskResponse]:
        """Run tasks in one worker with async and sync tasks before, between and after them; return their responses."""
        neighbours = [Task(0.1, agents.nap if i % 2 else agents.sleep, id=f"neighbour {i}") for i in range(12)]
        responses = self.run(*neighbours[:4], *tasks, *neighbours[4:], worker_num=1, concurrency=4)
        for neighbour in neighbours:
            response = responses.pop(neighbour.id)
            assert (response.success, response.executions) == (True, 1), response
        return responses

    # --- time limits --------------------------------------------------------------------------------------------------

    def test_a_limit_counts_work_without_the_queue(self) -> None:
        tasks = [Task(0.3, agents.sleep, id=str(i), timeout=2.5) for i in range(11)]
        responses = self.run(*tasks, worker_num=1, concurrency=1)
        assert all(response.success for response in responses.values()), responses
        assert responses["10"].queue_time > 2.5

    def test_a_limit_counts_from_the_start_of_the_code(self) -> None:
        """The first task lets the others start a moment later than they were sent."""
        late = [Task(60.0, agents.nap, id=str(i), timeout=0.6) for i in range(3)]
        responses = self.run_warm(Task(0.3, agents.block_briefly, id="first"), *late)
        assert responses.pop("first").success
        assert all(response.status is TaskStatus.TIMED_OUT for response in responses.values()), responses
        assert all(response.time_cost >= 0.59 for response in responses.values()), responses

    def test_async_code_is_cancelled_and_cleans_up(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        responses = self.run_warm(
            Task(str(path), agents.clean_up_when_cancelled, id="slow", timeout=0.4),
            *(Task(0.1, agents.nap, id=str(i)) for i in range(5)),
        )
        slow = responses.pop("slow")
        assert slow.status is TaskStatus.TIMED_OUT
        assert 0.4 <= slow.time_cost < 20
        assert "cleaned up" in path.read_text()
        assert all(response.success for response in responses.values())

    def test_the_limit_of_the_run_applies_to_tasks_without_their_own(self, tmp_path: Path) -> None:
        responses = self.run(
            Task(str(tmp_path / "log"), agents.clean_up_when_cancelled, id="a"),
            Task(0.5, agents.nap, id="b", timeout=60.0),
            timeout=0.3,
        )
        assert responses["a"].status is TaskStatus.TIMED_OUT
        assert responses["b"].success

    # --- unserialisable objects ---------------------------------------------------------------------------------------

    def test_an_unserialisable_input_is_rejected_before_anything_runs(self, tmp_path: Path) -> None:
        marker = tmp_path / "ran"
        with raises(Unserialisable, "task 'bad'", "input['lock']"):
            self.run(
                Task((str(marker), 1), agents.fail_until, id="good"),
                Task({"lock": threading.Lock()}, agents.echo, id="bad"),
            )
        assert not marker.exists()

    def test_an_unserialisable_agent_is_rejected_before_anything_runs(self) -> None:
        agent = agents.Counter("c")
        agent.lock = threading.Lock()  # type: ignore[attr-defined]
        with raises(Unserialisable, "task 'bad'", "agent.lock"):
            self.run(Task(1, agent, id="bad"))

    def test_an_unserialisable_answer_fails_only_its_task(self) -> None:
        responses = self.run(Task(1, agents.answer_with_a_lock, id="bad"), Task(1, agents.echo, id="good"))
        assert responses["bad"].status is TaskStatus.FAILED
        assert "answer['lock']" in responses["bad"].msg
        assert responses["good"].success

    def test_a_stream_reports_invalid_tasks_and_continues(self) -> None:
        def tasks() -> Iterator[Task]:
            yield Task(1, agents.echo, id="a")
            yield Task(threading.Lock(), agents.echo, id="lock")
            yield Task(2, agents.echo, id="a")
            yield Task(3, agents.echo, id="b")

        responses = list(Runners.iter_tasks(tasks(), self.config()))
        assert sorted((r.id, r.success) for r in responses) == [("a", False), ("a", True), ("b", True), ("lock", False)]

    # --- concurrency limits -------------------------------------------------------------------------------------------

    def test_sync_tasks_respect_the_concurrency_limit(self) -> None:
        self._check_limits(agents.sleep_interval, worker_num=2, concurrency=3)

    def test_async_tasks_respect_the_concurrency_limit(self) -> None:
        self._check_limits(agents.nap_interval, worker_num=2, concurrency=3)

    def test_sync_and_async_tasks_share_the_limit(self) -> None:
        self._check_limits(agents.sleep_interval, agents.nap_interval, worker_num=1, concurrency=3)

    def _check_limits(self, *functions: Any, worker_num: int, concurrency: int) -> None:
        tasks = [Task(0.05, functions[i % len(functions)], id=str(i)) for i in range(40)]
        responses = self.run(*tasks, worker_num=worker_num, concurrency=concurrency)
        intervals: list[agents.Interval] = [response.unwrap() for response in responses.values()]
        assert len({interval.pid for interval in intervals}) <= worker_num
        assert max_overlap(intervals) <= worker_num * concurrency
        for pid in {interval.pid for interval in intervals}:
            assert max_overlap([interval for interval in intervals if interval.pid == pid]) <= concurrency
        assert max_overlap(intervals) > 1, "no tasks ran at the same time"

    # --- sequences ----------------------------------------------------------------------------------------------------

    def test_each_answer_becomes_the_next_input(self) -> None:
        responses = self.run(
            Task("a", agents.shout, id="1"),
            Task("ignored", agents.echo, id="2"),
            Task("", agents.shout, id="3"),
            sequence_dependent=True,
        )
        assert [response.answer for response in responses.values()] == ["A", "A", "A"]

    def test_a_failure_cancels_the_rest_of_the_sequence(self) -> None:
        tasks = [
            Task("x", agent, id=str(i)) for i, agent in enumerate([agents.echo, agents.fail, agents.echo, agents.echo])
        ]
        responses = self.run(*tasks, sequence_dependent=True)
        statuses = [response.status for response in responses.values()]
        assert statuses == [TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.CANCELLED]
        assert "'1'" in responses["3"].msg

    # --- agents in scripts and notebooks ------------------------------------------------------------------------------

    def test_agents_in_main_and_in_modules_next_to_the_script(self, tmp_path: Path) -> None:
        program = programs.Program(tmp_path, programs.AGENTS_IN_MAIN, self.config_settings(), beside=programs.BESIDE)
        assert "['hello <q0>', '<q1>', 'helped q2', 'assisted q3']" in program.run()

    def test_agents_in_notebook_cells_inside_a_running_event_loop(self, tmp_path: Path) -> None:
        printed = programs.Program(tmp_path, programs.NOTEBOOK, self.config_settings()).run()
        assert "cell 42" in printed
        assert "again 48" in printed

    def config_settings(self) -> dict[str, Any]:
        """Return the settings with which separate programs use the engine."""
        return {"worker_num": 2, **self.settings}

    # --- prints and logs ----------------------------------------------------------------------------------------------

    def test_prints_and_logs_are_labelled_with_their_task(self, capsys: Any, caplog: Any) -> None:
        responses = self.run(Task("one", agents.print_and_log, id="a"), Task("two", agents.print_and_log, id="b"))
        assert [response.answer for response in responses.values()] == ["a", "b"]
        printed = capsys.readouterr().out.splitlines()
        assert {"[a] printed one", "[a] no newline one", "[b] printed two", "[b] no newline two"} <= set(printed), (
            printed
        )
        logged = [record.getMessage() for record in caplog.records if record.name == "contract"]
        assert logged.count("[a] logged one") == 1

    def test_loggers_have_the_levels_of_the_program(self, caplog: Any) -> None:
        with caplog.at_level("DEBUG", logger="contract.detailed"):
            self.run(Task("detail", agents.log_debug, id="a"))
        assert [record.getMessage() for record in caplog.records if record.name == "contract.detailed"] == [
            "[a] detail"
        ]

    # --- the surroundings of the program ------------------------------------------------------------------------------

    def test_tasks_have_the_environment_variables_and_the_directory_of_the_program(
        self, monkeypatch: Any, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PWD", "/changed by the program")
        monkeypatch.setenv("PARAGENT_CONTRACT", "set by the program")
        monkeypatch.chdir(tmp_path)
        names = ["PWD", "PARAGENT_CONTRACT"]
        answer = self.run(Task(names, agents.surroundings, id="a"))["a"].unwrap()
        assert answer == (str(tmp_path), ["/changed by the program", "set by the program"])

    # --- results as they finish ---------------------------------------------------------------------------------------

    def test_answers_arrive_while_tasks_are_still_generated(self) -> None:
        generated = []

        def tasks() -> Iterator[Task]:
            for number in range(5000):
                generated.append(number)
                yield Task(0.01, agents.nap)

        for response in Runners.iter_tasks(tasks(), self.config(concurrency=4)):
            assert response.success
            assert len(generated) < 5000, "all tasks were generated before the first answer"
            break

    def test_leaving_the_iteration_early_stops_the_remaining_tasks(self) -> None:
        config = self.config()
        with open_engine(config) as engine:
            for response in Runners.iter_tasks([Task(60.0 * i, agents.nap) for i in range(4)], config, engine=engine):
                assert response.success
                break
            again = Runners.sync_run_task([Task("x", agents.shout, id="x")], config, engine=engine)
            assert again["x"].answer == "X"

    def test_a_stream_of_async_tasks_from_an_async_source(self) -> None:
        async def tasks() -> Any:
            for number in range(20):
                await asyncio.sleep(0.001)
                yield Task(number, agents.echo, id=str(number))

        async def collect() -> list[Any]:
            return [response.answer async for response in Runners.stream_tasks(tasks(), self.config())]

        assert sorted(asyncio.run(collect())) == list(range(20))

    def test_cancelling_an_async_run_stops_it(self, tmp_path: Path) -> None:
        path = tmp_path / "log"

        async def cancel() -> None:
            running = asyncio.create_task(
                Runners.run_task(Task(str(path), agents.clean_up_when_cancelled), self.config())
            )
            while not path.exists():
                await asyncio.sleep(0.01)
            running.cancel()
            try:
                await running
            except asyncio.CancelledError:
                return
            raise AssertionError("the run was not cancelled")

        asyncio.run(asyncio.wait_for(cancel(), programs.START_LIMIT))

    def test_close_is_idempotent(self) -> None:
        engine = open_engine(self.config())
        engine.close()
        engine.close()


class IsolationContract(EngineContract):
    """The additional guarantees of engines whose workers are separate processes."""

    def tasks_that_end_in_every_way(self, folder: Path) -> list[Task]:
        """Return the tasks for every engine, and tasks that end their worker."""
        return [
            *super().tasks_that_end_in_every_way(folder),
            Task(3, agents.exit_at_once, id="lost", max_retries=1),
            Task(0, agents.segfault, id="lost by a signal", max_retries=0),
        ]

    # --- time limits of code that does not react ----------------------------------------------------------------------

    def test_python_code_that_hangs_loses_its_worker(self, tmp_path: Path) -> None:
        self._check_hang(agents.hang_in_python, tmp_path / "pid")

    def test_native_code_that_hangs_loses_its_worker(self, tmp_path: Path) -> None:
        self._check_hang(agents.hang_in_c, tmp_path / "pid")

    def test_async_code_that_blocks_the_loop_loses_its_worker(self, tmp_path: Path) -> None:
        self._check_hang(agents.block_the_loop, tmp_path / "pid")

    def test_async_code_that_ignores_cancellation_loses_its_worker(self, tmp_path: Path) -> None:
        self._check_hang(agents.ignore_cancellation, tmp_path / "pid")

    def test_time_in_which_a_task_blocks_the_loop_is_not_charged_to_others(self, tmp_path: Path) -> None:
        others = [Task(0.3, agents.nap, id=str(i), timeout=2.0) for i in range(20)]
        blocking = Task(str(tmp_path / "pid"), agents.block_the_loop, id="blocks", timeout=2.0)
        responses = self.run_warm(blocking, *others)
        assert responses.pop("blocks").status is TaskStatus.TIMED_OUT
        assert all(response.success for response in responses.values()), responses

    def _check_hang(self, agent: Any, path: Path) -> None:
        neighbours = [Task(1.0, agents.nap, id=str(i)) for i in range(6)]
        responses = self.run_warm(Task(str(path), agent, id="hang", timeout=0.7), *neighbours)
        hang = responses.pop("hang")
        assert hang.status is TaskStatus.TIMED_OUT
        assert hang.executions == 1
        assert 0.7 <= hang.time_cost < 30
        assert all(response.success and response.executions == 1 for response in responses.values()), responses
        [pid] = programs.pids_in(path)
        programs.wait_until(lambda: not programs.alive(pid))

    # --- workers that die ---------------------------------------------------------------------------------------------

    def test_a_killed_worker_costs_one_execution(self, tmp_path: Path) -> None:
        responses = self.run(
            Task(str(tmp_path / "died"), agents.die_once, id="once", max_retries=1),
            *(Task(i, agents.echo, id=str(i)) for i in range(20)),
        )
        assert (responses["once"].answer, responses["once"].executions) == ("survived", 2)
        assert all(response.success for response in responses.values())

    def test_a_lost_worker_is_logged_and_its_cause_is_kept(self, tmp_path: Path, caplog: Any) -> None:
        response = self.run(Task(str(tmp_path / "died"), agents.die_once, id="once", max_retries=1))["once"]
        assert (response.success, response.executions, response.error) == (True, 2, None)
        [cause] = response.earlier_errors
        assert (cause.type, cause.retryable) == ("WorkerLost", True)
        [record] = [one for one in caplog.records if one.name == "paragent" and one.levelname == "WARNING"]
        assert record.getMessage().startswith("lost a worker: ")
        assert cause.message in record.getMessage()

    def test_a_task_that_kills_its_workers_is_lost_and_no_other_task(self) -> None:
        others = [Task(0.05, agents.nap if i % 2 else agents.sleep, id=str(i)) for i in range(30)]
        responses = self.run(*others[:15], Task(3, agents.exit_at_once, id="killer", max_retries=1), *others[15:])
        killer = responses.pop("killer")
        assert (killer.status, killer.executions) == (TaskStatus.LOST, 2)
        assert killer.error is not None
        assert killer.error.retryable
        assert "status 3" in killer.msg
        assert all(response.success and response.executions == 1 for response in responses.values()), responses

    def test_without_retries_a_lost_worker_is_final(self) -> None:
        responses = self.run(Task(0, agents.segfault, id="a", max_retries=0), Task(1, agents.echo, id="b"))
        assert (responses["a"].status, responses["a"].executions) == (TaskStatus.LOST, 1)
        assert responses["b"].success

    def test_workers_killed_from_outside_lose_nothing(self) -> None:
        """Three workers are killed while they run several tasks each."""
        killed: set[int] = set()
        done = 0
        tasks = [Task(0.15, agents.nap_interval if i % 2 else agents.sleep_interval, id=str(i)) for i in range(60)]
        for response in Runners.iter_tasks(tasks, self.config(concurrency=4, max_retries=10)):
            assert response.success, response
            done += 1
            pid = response.answer.pid
            if len(killed) < 3 and pid not in killed:
                killed.add(pid)
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        assert done == 60

    def test_workers_are_reused(self) -> None:
        responses = self.run(*(Task(0.0, agents.sleep_interval, id=str(i)) for i in range(200)))
        assert len({response.unwrap().pid for response in responses.values()}) <= 2

    def test_every_call_has_a_new_process_if_configured(self) -> None:
        responses = self.run(*(Task(0.0, agents.sleep_interval, id=str(i)) for i in range(5)), reuse_process=False)
        assert len({response.unwrap().pid for response in responses.values()}) == 5

    # --- Ctrl-C and the death of the program --------------------------------------------------------------------------

    def test_ctrl_c_cancels_unfinished_tasks_lets_async_code_clean_up_and_leaves_no_process(
        self, tmp_path: Path
    ) -> None:
        with self._long_run(tmp_path, "hang_in_python", "clean_up_when_cancelled") as (process, path):
            programs.press_ctrl_c(process)
            out, err = process.communicate(timeout=programs.END_LIMIT)
            assert process.returncode != 0
            assert "{'quick': 'succeeded', 'slow0': 'cancelled', 'slow1': 'cancelled'}" in out, (out, err)
            assert path.read_text().count("cleaned up") == 1
            programs.wait_until(lambda: not any(map(programs.alive, programs.pids_in(path))))

    def test_a_second_ctrl_c_ends_at_once(self, tmp_path: Path) -> None:
        with self._long_run(tmp_path, "ignore_cancellation", "ignore_cancellation") as (process, path):
            programs.press_ctrl_c(process)
            time.sleep(0.2)  # so that the first Ctrl-C has been handled
            programs.press_ctrl_c(process)
            process.communicate(timeout=programs.END_LIMIT)
            assert process.returncode != 0
            programs.wait_until(lambda: not any(map(programs.alive, programs.pids_in(path))))

    def test_workers_end_when_the_program_is_killed(self, tmp_path: Path) -> None:
        with self._long_run(tmp_path, "hang_in_c", "clean_up_when_cancelled") as (process, path):
            process.kill()
            process.communicate(timeout=programs.END_LIMIT)
            programs.wait_until(lambda: not any(map(programs.alive, programs.pids_in(path))))

    @contextlib.contextmanager
    def _long_run(self, folder: Path, *names: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
        """Start a program with a task for each agent, none of which ends; yield it and the file with the workers' pids.

        One task runs at a time in each worker, so that every task has its own.
        """
        path = folder / "pids"
        settings = {**self.config_settings(), "concurrency": 1}
        process = programs.Program(folder, programs.LONG_RUN, settings).start(str(path), *names)
        try:
            programs.wait_until(lambda: len(programs.pids_in(path)) == len(names), programs.START_LIMIT)
            yield process, path
        finally:
            process.kill()


def comparable(response: TaskResponse) -> dict[str, Any]:
    """Return the fields of a response; times, locations and the trace id are replaced by whether they are set."""
    fields = dataclasses.asdict(response)
    location = response.worker
    for name in ("time_cost", "worker", "trace_id"):
        fields[name] = bool(fields[name])
    del fields["queue_time"], fields["earlier_errors"]
    for holder, name in ((fields, "msg"), (fields["error"] or {}, "message")):
        if name in holder:
            text = holder[name].replace(location, "<location>") if location else holder[name]
            holder[name] = re.sub(r"[0-9.]+(e-[0-9]+)? s\b", "<seconds>", text)
    return fields


def error_type(response: TaskResponse) -> str:
    """Return the type of the error that ended a task."""
    assert response.error is not None, response
    return response.error.type


class raises:  # noqa: N801 - like `pytest.raises`, on which this module must not depend
    """Expect an error whose message contains all of the given parts."""

    def __init__(self, kind: type[BaseException], *parts: str) -> None:
        self._kind = kind
        self._parts = parts

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        assert error is not None, f"{self._kind.__name__} was not raised"
        if not isinstance(error, self._kind):
            return False
        missing = [part for part in self._parts if part not in str(error)]
        assert not missing, f"{missing} not in {error}"
        return True


def max_overlap(intervals: list[agents.Interval]) -> int:
    """Return the largest number of intervals that overlap."""
    events = sorted([(p.began, 1) for p in intervals] + [(p.ended, -1) for p in intervals])
    most = current = 0
    for _, change in events:
        current += change
        most = max(most, current)
    return most

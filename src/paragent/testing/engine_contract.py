"""The contract of engines as tests: subclass, say which engine, and let pytest collect it.

::

    class TestMyEngine(IsolationContract):
        settings = {"engine_name": "mine"}
"""

from __future__ import annotations

import asyncio
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
from paragent.testing import agents as be
from paragent.testing import programs as scripts

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["EngineContract", "IsolationContract"]


class EngineContract:
    """What every engine promises, also one that shares the process with the program."""

    settings: ClassVar[Mapping[str, Any]] = {}
    """Keyword arguments of the RunConfig that selects the engine; their `repr` must be valid Python."""

    def config(self, **settings: Any) -> RunConfig:
        """Return a configuration for two workers on the engine under test."""
        return RunConfig(**{"worker_num": 2, **self.settings, **settings})

    def run(self, *tasks: Task, **settings: Any) -> dict[str, TaskResponse]:
        """Run tasks on the engine under test."""
        return Runners.sync_run_task(list(tasks), self.config(**settings))

    def run_warm(self, *tasks: Task, **settings: Any) -> dict[str, TaskResponse]:
        """Run tasks in one worker that has worked already: loading code is work, and counts against a time limit."""
        config = self.config(worker_num=1, **settings)
        with open_engine(config) as engine:
            Runners.sync_run(0.0, be.nap, config, engine=engine)
            return Runners.sync_run_task(list(tasks), config, engine=engine)

    # --- 1. one response for each task --------------------------------------------------------------------------------

    def test_responses_come_by_id_and_in_input_order(self) -> None:
        waits = [0.2, 0.0, 0.1, 0.0, 0.05]
        responses = self.run(*(Task(wait, be.nap, id=f"t{i}") for i, wait in enumerate(waits)))
        assert list(responses) == ["t0", "t1", "t2", "t3", "t4"]
        assert [response.answer for response in responses.values()] == waits
        assert all(
            response.status is TaskStatus.SUCCEEDED and response.attempts == 1 for response in responses.values()
        )

    def test_falsy_answers_are_answers(self) -> None:
        falsy: list[Any] = [None, 0, "", [], {}, False, 0.0, ()]
        responses = self.run(*(Task(value, be.echo, id=str(i)) for i, value in enumerate(falsy)))
        assert [(response.success, response.answer) for response in responses.values()] == [(True, v) for v in falsy]

    def test_a_response_tells_where_and_how_long(self) -> None:
        response = self.run(Task(0.2, be.sleep, id="a", name="nap", metadata={"k": 1}))["a"]
        assert 0.2 <= response.time_cost < 20
        assert response.queue_time >= 0
        assert response.worker.rpartition(":")[2].isdigit()
        assert len(response.trace_id) == 32
        assert (response.name, response.metadata, response.msg, response.error) == ("nap", {"k": 1}, "", None)

    def test_many_tasks_all_come_back(self) -> None:
        responses = self.run(*(Task(i, be.echo, id=str(i)) for i in range(3000)))
        assert [response.answer for response in responses.values()] == list(range(3000))

    def test_answers_of_other_types_keep_them(self) -> None:
        responses = self.run(Task(be.Point(1, 2), be.echo, id="p"), Task({"k": [be.Point(3, 4)]}, be.echo, id="q"))
        assert responses["p"].answer == be.Point(1, 2)
        assert isinstance(responses["q"].answer["k"][0], be.Point)

    def test_errors_inside_an_answer_keep_their_class(self) -> None:
        response = self.run(Task(1, be.answer_with_errors, id="a"))["a"]
        assert response.success, response.msg
        rejected, not_found = response.answer
        assert type(rejected) is be.Rejected
        assert (str(rejected), rejected.code, rejected.detail) == ("7: because", 7, "because")
        assert rejected.__notes__[0] == "a note"
        assert "stream" in rejected.__notes__[1], "what cannot travel is left out and named"
        assert repr(rejected.__cause__) == "ValueError('root')"
        assert (type(not_found).__name__, not_found.code, not_found.filename) == ("HTTPError", 404, "http://host")

    def test_large_inputs_and_answers_pass(self) -> None:
        payload = os.urandom(1 << 20) * 20
        response = self.run(Task(payload, be.echo, id="big"))["big"]
        assert response.answer == payload

    def test_no_tasks_no_responses(self) -> None:
        assert self.run() == {}

    def test_ids_that_stand_twice_are_refused_before_anything_runs(self, tmp_path: Path) -> None:
        marker = tmp_path / "ran"
        with raises(DuplicateTaskId, "same"):
            self.run(Task((str(marker), 1), be.fail_until, id="same"), Task(1, be.echo, id="same"))
        assert not marker.exists()

    def test_each_task_gets_the_agent_as_it_was(self) -> None:
        agent = be.Counter("c")
        responses = self.run(*(Task(i, agent, id=str(i)) for i in range(10)))
        assert [response.answer for response in responses.values()] == [[i, 1] for i in range(10)]
        assert agent.calls == 0

    def test_usage_and_trajectory_come_back(self) -> None:
        response = self.run(Task(3, be.take_notes, id="a"))["a"]
        assert response.usage == {"tokens": 30}
        assert response.trajectory == [{"step": 0}, {"step": 1}, {"step": 2}]

    def test_responses_have_the_same_fields_as_on_the_local_engine(self, tmp_path: Path) -> None:
        """Programs must not depend on where tasks run: all but times, places and trace ids is the same everywhere."""
        ours = self._fields(tmp_path / "ours", self.settings)
        local = self._fields(tmp_path / "local", {"engine_name": "local"})
        for task_id, fields in local.items():
            assert ours[task_id] == fields

    def _fields(self, folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the responses to tasks that end in every way, by task id."""
        folder.mkdir()
        responses = Runners.sync_run_task(
            self.tasks_that_end_in_every_way(folder), RunConfig(**{**settings, "worker_num": 1, "concurrency": 4})
        )
        responses |= self._cancelled(folder / "began", RunConfig(**{**settings, "worker_num": 1, "concurrency": 2}))
        return {task_id: comparable(response) for task_id, response in responses.items()}

    def tasks_that_end_in_every_way(self, folder: Path) -> list[Task]:
        """Return tasks, each with an id that says how it ends; the engine's part is what matters."""
        return [
            Task({"k": [1]}, be.echo, id="answer", name="a name", metadata={"k": "v"}),
            Task(2, be.take_notes, id="notes"),
            Task("boom", be.fail, id="error"),
            Task("boom", be.fail, id="error after retries", max_retries=2),
            Task(0, be.exit_in_a_subtask, id="exit"),
            Task(0, be.answer_with_a_lock, id="unserialisable answer"),
            Task(0, be.answer_that_exits_when_read, id="unreadable answer"),
            Task(str(folder / "cleaned"), be.clean_up_when_cancelled, id="async time limit", timeout=0.4),
            Task(60.0, be.sleep, id="sync time limit", timeout=0.4),
        ]

    def _cancelled(self, path: Path, config: RunConfig) -> dict[str, TaskResponse]:
        """Press Ctrl-C while a sync and an async task run and a third waits."""
        pressed: list[bool] = []

        def press(_: Any) -> None:
            if len(scripts.pids_in(path)) == 2 and not pressed:
                pressed.append(True)
                raise KeyboardInterrupt

        tasks = [
            Task(str(path), be.clean_up_when_cancelled, id="async cancelled"),
            Task(str(path), be.hang_in_python, id="sync cancelled"),
            Task(0, be.echo, id="cancelled before its start"),
        ]
        try:
            Runners.sync_run_task(tasks, config.with_settings(progress=press))
        except Interrupted as interrupted:
            return interrupted.responses
        raise AssertionError("the run was not interrupted")

    # --- 2. an exception is a failed response -------------------------------------------------------------------------

    def test_an_exception_fails_its_task_and_no_other(self) -> None:
        responses = self.run(
            *(Task("boom" if i == 5 else "ok", be.fail if i == 5 else be.shout, id=str(i)) for i in range(10))
        )
        failed = responses.pop("5")
        assert failed.status is TaskStatus.FAILED
        assert not failed.success
        assert failed.error is not None
        assert (failed.error.type, failed.error.message) == ("ValueError", "boom")
        assert "in fail" in failed.error.traceback
        assert "ValueError: boom" in failed.msg
        assert all(response.answer == "OK" for response in responses.values())

    def test_a_failure_is_tried_again_only_if_asked_for(self, tmp_path: Path) -> None:
        once, thrice = str(tmp_path / "once"), str(tmp_path / "thrice")
        responses = self.run(
            Task((once, 3), be.fail_until, id="once"), Task((thrice, 3), be.fail_until, id="thrice", max_retries=5)
        )
        assert (responses["once"].status, responses["once"].attempts) == (TaskStatus.FAILED, 1)
        assert (responses["thrice"].answer, responses["thrice"].attempts) == (3, 3)

    def test_leaving_the_program_inside_a_subtask_fails_its_task_and_no_other(self) -> None:
        """`sys.exit` and KeyboardInterrupt end an event loop; the loop of a worker goes on for the others."""
        responses = self._among_neighbours(
            Task(0, be.exit_in_a_subtask, id="exit"),
            Task(0, be.interrupt_in_a_subtask, id="interrupt"),
            Task("kept", be.leave_a_subtask_that_exits, id="left"),
        )
        assert (responses["exit"].status, error_type(responses["exit"])) == (TaskStatus.FAILED, "SystemExit")
        assert (responses["interrupt"].status, error_type(responses["interrupt"])) == (
            TaskStatus.FAILED,
            "KeyboardInterrupt",
        )
        assert responses["left"].answer == "kept"

    def test_objects_that_cannot_be_looked_at_fail_their_task_and_no_other(self) -> None:
        responses = self._among_neighbours(
            Task("hidden", be.fail_with_hidden_attributes, id="error"),
            Task("own", be.fail_with_own_text, id="text"),
            Task(0, be.answer_that_hides_its_attributes, id="answer"),
            Task(0, be.answer_that_exits, id="exits"),
        )
        assert all(response.status is TaskStatus.FAILED for response in responses.values()), responses
        assert "hidden" in responses["error"].msg
        assert "_HidingError" in error_type(responses["error"])
        assert responses["text"].msg.endswith("Failure: own")
        assert "answer" in responses["answer"].msg
        assert error_type(responses["exits"]) == "SystemExit"

    def test_usage_and_logs_of_own_classes_come_back_as_plain_ones(self, caplog: Any) -> None:
        responses = self._among_neighbours(
            Task(3, be.record_own_number, id="usage"), Task("own", be.log_with_own_level, id="log")
        )
        assert (responses["usage"].answer, responses["usage"].usage) == (3, {"tokens": 3})
        assert type(responses["usage"].usage["tokens"]) is int
        assert responses["log"].answer == "own"
        assert any("logged own" in record.getMessage() for record in caplog.records if record.name == "contract")

    def _among_neighbours(self, *tasks: Task) -> dict[str, TaskResponse]:
        """Run tasks in one worker with async and sync ones before, beside and after them; return their responses."""
        neighbours = [Task(0.1, be.nap if i % 2 else be.sleep, id=f"neighbour {i}") for i in range(12)]
        responses = self.run(*neighbours[:4], *tasks, *neighbours[4:], worker_num=1, concurrency=4)
        for neighbour in neighbours:
            response = responses.pop(neighbour.id)
            assert (response.success, response.attempts) == (True, 1), response
        return responses

    # --- 3. time limits -----------------------------------------------------------------------------------------------

    def test_a_limit_counts_work_and_not_the_queue(self) -> None:
        tasks = [Task(0.3, be.sleep, id=str(i), timeout=2.5) for i in range(11)]
        responses = self.run(*tasks, worker_num=1, concurrency=1)
        assert all(response.success for response in responses.values()), responses
        assert responses["10"].queue_time > 2.5

    def test_async_code_is_cancelled_and_cleans_up(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        responses = self.run_warm(
            Task(str(path), be.clean_up_when_cancelled, id="slow", timeout=0.4),
            *(Task(0.1, be.nap, id=str(i)) for i in range(5)),
        )
        slow = responses.pop("slow")
        assert slow.status is TaskStatus.TIMED_OUT
        assert 0.4 <= slow.time_cost < 20
        assert "cleaned up" in path.read_text()
        assert all(response.success for response in responses.values())

    def test_the_limit_of_the_run_holds_for_tasks_without_their_own(self, tmp_path: Path) -> None:
        responses = self.run(
            Task(str(tmp_path / "log"), be.clean_up_when_cancelled, id="a"),
            Task(0.5, be.nap, id="b", timeout=60.0),
            timeout=0.3,
        )
        assert responses["a"].status is TaskStatus.TIMED_OUT
        assert responses["b"].success

    # --- 5. what cannot be serialised ---------------------------------------------------------------------------------

    def test_an_input_that_cannot_travel_is_named_before_anything_runs(self, tmp_path: Path) -> None:
        marker = tmp_path / "ran"
        with raises(Unserialisable, "task 'bad'", "input['lock']"):
            self.run(
                Task((str(marker), 1), be.fail_until, id="good"), Task({"lock": threading.Lock()}, be.echo, id="bad")
            )
        assert not marker.exists()

    def test_an_agent_that_cannot_travel_is_named_before_anything_runs(self) -> None:
        agent = be.Counter("c")
        agent.lock = threading.Lock()  # type: ignore[attr-defined]
        with raises(Unserialisable, "task 'bad'", "agent.lock"):
            self.run(Task(1, agent, id="bad"))

    def test_an_answer_that_cannot_travel_is_that_tasks_failure(self) -> None:
        responses = self.run(Task(1, be.answer_with_a_lock, id="bad"), Task(1, be.echo, id="good"))
        assert responses["bad"].status is TaskStatus.FAILED
        assert "answer['lock']" in responses["bad"].msg
        assert responses["good"].success

    def test_a_stream_reports_what_cannot_run_and_goes_on(self) -> None:
        def tasks() -> Iterator[Task]:
            yield Task(1, be.echo, id="a")
            yield Task(threading.Lock(), be.echo, id="lock")
            yield Task(2, be.echo, id="a")
            yield Task(3, be.echo, id="b")

        responses = list(Runners.iter_tasks(tasks(), self.config()))
        assert sorted((r.id, r.success) for r in responses) == [("a", False), ("a", True), ("b", True), ("lock", False)]

    # --- 6. never more at a time than was said ------------------------------------------------------------------------

    def test_no_more_sync_tasks_at_a_time_than_configured(self) -> None:
        self._check_limits(be.stay, worker_num=2, concurrency=3)

    def test_no_more_async_tasks_at_a_time_than_configured(self) -> None:
        self._check_limits(be.stay_async, worker_num=2, concurrency=3)

    def test_sync_and_async_tasks_share_the_limit(self) -> None:
        self._check_limits(be.stay, be.stay_async, worker_num=1, concurrency=3)

    def _check_limits(self, *agents: Any, worker_num: int, concurrency: int) -> None:
        tasks = [Task(0.05, agents[i % len(agents)], id=str(i)) for i in range(40)]
        responses = self.run(*tasks, worker_num=worker_num, concurrency=concurrency)
        presences: list[be.Presence] = [response.unwrap() for response in responses.values()]
        assert len({presence.pid for presence in presences}) <= worker_num
        assert most_at_a_time(presences) <= worker_num * concurrency
        for pid in {presence.pid for presence in presences}:
            assert most_at_a_time([presence for presence in presences if presence.pid == pid]) <= concurrency
        assert most_at_a_time(presences) > 1, "nothing ran at the same time"

    # --- 7. sequences -------------------------------------------------------------------------------------------------

    def test_each_answer_becomes_the_next_input(self) -> None:
        responses = self.run(
            Task("a", be.shout, id="1"),
            Task("ignored", be.echo, id="2"),
            Task("", be.shout, id="3"),
            sequence_dependent=True,
        )
        assert [response.answer for response in responses.values()] == ["A", "A", "A"]

    def test_a_failure_ends_the_sequence_and_the_rest_say_so(self) -> None:
        tasks = [Task("x", agent, id=str(i)) for i, agent in enumerate([be.echo, be.fail, be.echo, be.echo])]
        responses = self.run(*tasks, sequence_dependent=True)
        statuses = [response.status for response in responses.values()]
        assert statuses == [TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.CANCELLED]
        assert "'1'" in responses["3"].msg

    # --- 8. agents from anywhere --------------------------------------------------------------------------------------

    def test_agents_in_main_and_beside_the_script(self, tmp_path: Path) -> None:
        program = scripts.Program(tmp_path, scripts.AGENTS_IN_MAIN, self.config_settings(), beside=scripts.BESIDE)
        assert "['hello <q0>', '<q1>', 'helped q2', 'assisted q3']" in program.run()

    def test_agents_in_notebook_cells_inside_a_running_event_loop(self, tmp_path: Path) -> None:
        printed = scripts.Program(tmp_path, scripts.NOTEBOOK, self.config_settings()).run()
        assert "cell 42" in printed
        assert "again 48" in printed

    def config_settings(self) -> dict[str, Any]:
        """Return the settings with which programs of their own use the engine."""
        return {"worker_num": 2, **self.settings}

    # --- 10. prints and logs ------------------------------------------------------------------------------------------

    def test_prints_and_logs_reach_the_user_marked_with_their_task(self, capsys: Any, caplog: Any) -> None:
        responses = self.run(Task("one", be.print_and_log, id="a"), Task("two", be.print_and_log, id="b"))
        assert [response.answer for response in responses.values()] == ["a", "b"]
        printed = capsys.readouterr().out.splitlines()
        assert {"[a] printed one", "[a] no newline one", "[b] printed two", "[b] no newline two"} <= set(printed), (
            printed
        )
        logged = [record.getMessage() for record in caplog.records if record.name == "contract"]
        assert any("logged one" in message for message in logged)

    # --- results as they finish ---------------------------------------------------------------------------------------

    def test_answers_come_while_tasks_are_still_drawn(self) -> None:
        drawn = []

        def tasks() -> Iterator[Task]:
            for number in range(5000):
                drawn.append(number)
                yield Task(0.01, be.nap)

        for response in Runners.iter_tasks(tasks(), self.config(concurrency=4)):
            assert response.success
            assert len(drawn) < 5000, "everything was drawn before the first answer"
            break

    def test_leaving_the_loop_early_leaves_nothing_running(self) -> None:
        config = self.config()
        with open_engine(config) as engine:
            for response in Runners.iter_tasks([Task(60.0 * i, be.nap) for i in range(4)], config, engine=engine):
                assert response.success
                break
            again = Runners.sync_run_task([Task("x", be.shout, id="x")], config, engine=engine)
            assert again["x"].answer == "X"

    def test_a_stream_of_async_tasks_from_an_async_source(self) -> None:
        async def tasks() -> Any:
            for number in range(20):
                await asyncio.sleep(0.001)
                yield Task(number, be.echo, id=str(number))

        async def collect() -> list[Any]:
            return [response.answer async for response in Runners.stream_tasks(tasks(), self.config())]

        assert sorted(asyncio.run(collect())) == list(range(20))

    def test_cancelling_an_async_run_stops_it(self, tmp_path: Path) -> None:
        path = tmp_path / "log"

        async def cancel() -> None:
            running = asyncio.create_task(Runners.run_task(Task(str(path), be.clean_up_when_cancelled), self.config()))
            while not path.exists():
                await asyncio.sleep(0.01)
            running.cancel()
            try:
                await running
            except asyncio.CancelledError:
                return
            raise AssertionError("the run went on")

        asyncio.run(asyncio.wait_for(cancel(), scripts.START_LIMIT))

    def test_closing_twice_is_fine(self) -> None:
        engine = open_engine(self.config())
        engine.close()
        engine.close()


class IsolationContract(EngineContract):
    """What engines promise whose workers are processes of their own."""

    def tasks_that_end_in_every_way(self, folder: Path) -> list[Task]:
        """Return tasks as for every engine, and some that end their worker."""
        return [
            *super().tasks_that_end_in_every_way(folder),
            Task(3, be.exit_at_once, id="lost", max_retries=1),
            Task(0, be.segfault, id="lost by a signal", max_retries=0),
        ]

    # --- 3. time limits that stop what does not want to stop ----------------------------------------------------------

    def test_python_code_that_hangs_loses_its_worker(self, tmp_path: Path) -> None:
        self._check_hang(be.hang_in_python, tmp_path / "pid")

    def test_native_code_that_hangs_loses_its_worker(self, tmp_path: Path) -> None:
        self._check_hang(be.hang_in_c, tmp_path / "pid")

    def test_async_code_that_blocks_the_loop_loses_its_worker(self, tmp_path: Path) -> None:
        self._check_hang(be.block_the_loop, tmp_path / "pid")

    def test_async_code_that_ignores_cancellation_loses_its_worker(self, tmp_path: Path) -> None:
        self._check_hang(be.ignore_cancellation, tmp_path / "pid")

    def _check_hang(self, agent: Any, path: Path) -> None:
        neighbours = [Task(1.0, be.nap, id=str(i)) for i in range(6)]
        responses = self.run_warm(Task(str(path), agent, id="hang", timeout=0.7), *neighbours)
        hang = responses.pop("hang")
        assert hang.status is TaskStatus.TIMED_OUT
        assert hang.attempts == 1
        assert 0.7 <= hang.time_cost < 30
        assert all(response.success and response.attempts == 1 for response in responses.values()), responses
        [pid] = scripts.pids_in(path)
        scripts.wait_until(lambda: not scripts.alive(pid))

    # --- 4. workers that die ------------------------------------------------------------------------------------------

    def test_a_killed_worker_costs_an_attempt(self, tmp_path: Path) -> None:
        responses = self.run(
            Task(str(tmp_path / "died"), be.die_once, id="once", max_retries=1),
            *(Task(i, be.echo, id=str(i)) for i in range(20)),
        )
        assert (responses["once"].answer, responses["once"].attempts) == ("survived", 2)
        assert all(response.success for response in responses.values())

    def test_a_task_that_kills_every_worker_is_lost_and_the_others_are_not(self) -> None:
        others = [Task(0.05, be.nap if i % 2 else be.sleep, id=str(i)) for i in range(30)]
        responses = self.run(*others[:15], Task(3, be.exit_at_once, id="killer", max_retries=1), *others[15:])
        killer = responses.pop("killer")
        assert (killer.status, killer.attempts) == (TaskStatus.LOST, 2)
        assert killer.error is not None
        assert killer.error.retryable
        assert "status 3" in killer.msg
        assert all(response.success and response.attempts == 1 for response in responses.values()), responses

    def test_without_retries_a_lost_worker_is_final(self) -> None:
        responses = self.run(Task(0, be.segfault, id="a", max_retries=0), Task(1, be.echo, id="b"))
        assert (responses["a"].status, responses["a"].attempts) == (TaskStatus.LOST, 1)
        assert responses["b"].success

    def test_workers_killed_from_outside_lose_nothing(self) -> None:
        """Every worker that shows up is killed once, with many tasks in it."""
        killed: set[int] = set()
        done = 0
        tasks = [Task(0.15, be.stay_async if i % 2 else be.stay, id=str(i)) for i in range(60)]
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
        responses = self.run(*(Task(0.0, be.stay, id=str(i)) for i in range(200)))
        assert len({response.unwrap().pid for response in responses.values()}) <= 2

    def test_a_fresh_process_for_each_attempt_if_asked_for(self) -> None:
        responses = self.run(*(Task(0.0, be.stay, id=str(i)) for i in range(5)), reuse_process=False)
        assert len({response.unwrap().pid for response in responses.values()}) == 5

    # --- 9. Ctrl-C and a driver that is killed ------------------------------------------------------------------------

    def test_ctrl_c_cancels_what_is_not_done_and_leaves_no_process(self, tmp_path: Path) -> None:
        process, path = self._long_run("hang_in_python", tmp_path)
        scripts.press_ctrl_c(process)
        out, err = process.communicate(timeout=scripts.END_LIMIT)
        assert process.returncode != 0
        assert "{'quick': 'succeeded', 'slow0': 'cancelled', 'slow1': 'cancelled'}" in out, (out, err)
        scripts.wait_until(lambda: not any(map(scripts.alive, scripts.pids_in(path))))

    def test_ctrl_c_lets_async_code_clean_up(self, tmp_path: Path) -> None:
        process, path = self._long_run("clean_up_when_cancelled", tmp_path)
        scripts.press_ctrl_c(process)
        process.communicate(timeout=scripts.END_LIMIT)
        assert process.returncode != 0
        assert path.read_text().count("cleaned up") == 2

    def test_a_second_ctrl_c_ends_at_once(self, tmp_path: Path) -> None:
        process, path = self._long_run("ignore_cancellation", tmp_path)
        scripts.press_ctrl_c(process)
        time.sleep(0.2)  # a second press is only a second one if the first was noticed
        scripts.press_ctrl_c(process)
        process.communicate(timeout=scripts.END_LIMIT)
        assert process.returncode != 0
        scripts.wait_until(lambda: not any(map(scripts.alive, scripts.pids_in(path))))

    def _long_run(self, behaviour: str, folder: Path) -> tuple[subprocess.Popen[str], Path]:
        """Start a program whose tasks do not end; return it, with the file of its workers' pids, when both are at work."""
        path = folder / "pids"
        process = scripts.Program(folder, scripts.LONG_RUN, self.config_settings()).start(behaviour, str(path))
        scripts.wait_until(lambda: len(scripts.pids_in(path)) == 2, scripts.START_LIMIT)
        return process, path

    def test_hung_workers_end_when_the_driver_is_killed(self, tmp_path: Path) -> None:
        self._check_killed_driver("hang_in_c", tmp_path)

    def test_async_workers_end_when_the_driver_is_killed(self, tmp_path: Path) -> None:
        self._check_killed_driver("clean_up_when_cancelled", tmp_path)

    def _check_killed_driver(self, behaviour: str, folder: Path) -> None:
        process, path = self._long_run(behaviour, folder)
        process.kill()
        process.communicate(timeout=scripts.END_LIMIT)
        scripts.wait_until(lambda: not any(map(scripts.alive, scripts.pids_in(path))))


def comparable(response: TaskResponse) -> dict[str, Any]:
    """Return the fields of a response, with times, places and the trace id replaced by whether they are there."""
    fields = dataclasses.asdict(response)
    place = response.worker
    for name in ("time_cost", "worker", "trace_id"):
        fields[name] = bool(fields[name])
    del fields["queue_time"]
    for holder, name in ((fields, "msg"), (fields["error"] or {}, "message")):
        if name in holder:
            text = holder[name].replace(place, "<place>") if place else holder[name]
            holder[name] = re.sub(r"[0-9.]+(e-[0-9]+)? s\b", "<seconds>", text)
    return fields


def error_type(response: TaskResponse) -> str:
    """Return the type of the error that ended a task."""
    assert response.error is not None, response
    return response.error.type


class raises:  # noqa: N801 - reads as pytest's, which users of the suite need not have configured alike
    """Expect an error whose message has all of the given parts."""

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


def most_at_a_time(presences: list[be.Presence]) -> int:
    """Return the largest number of presences that overlap."""
    events = sorted([(p.began, 1) for p in presences] + [(p.ended, -1) for p in presences])
    most = present = 0
    for _, change in events:
        present += change
        most = max(most, present)
    return most

"""Node agents without a cluster: authentication, the loss of a node agent, and invalid settings."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from paragent import AccessDenied, ConfigError, EngineFailed, MissingExtra, ProtocolError, RunConfig, Runners, Task
from paragent._installation import install_command
from paragent._internal.clock import ManualClock
from paragent._internal.threads import fatal
from paragent.engines import Cluster, open_engine
from paragent.engines._node_agent import (
    HEARTBEAT,
    SILENCE_LIMIT,
    NodeAgent,
    NodeAgentSpec,
    NodeReport,
    run_node_agent,
    run_node_agents,
)
from paragent.engines._node_handle import NodeHandle, NodeListener
from paragent.engines._worker_handle import WorkerReport
from paragent.engines.base import Call
from paragent.execution import Ending
from paragent.serialization.packing import Packer
from paragent.testing import IsolationContract, agents, programs
from paragent.transport.auth import MESSAGE_LIMIT, ClientSide, Token, accept_with_proof, connect_with_proof
from paragent.transport.framing import encode, frame, receive
from paragent.worker.protocol import OutcomeBatch
from tests.children import BoundedPopen
from tests.engines.thread_cluster import ThreadCluster, ThreadRuntime
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[2]
THIS = sys.version_info[:2]
TOKEN, OTHER_TOKEN = Token("the token of this run"), Token("the token of another run")


@pytest.mark.slow
class TestNodeAgentsInThreads(IsolationContract):
    settings = {"cls": "tests.engines.thread_cluster:ThreadRuntime"}  # noqa: RUF012 - as the suite says

    @pytest.fixture(autouse=True)
    def _programs_find_the_engine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", str(ROOT))


# --- authentication ---------------------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(30)
        theirs.settimeout(30)
        yield ours, theirs


def answer_of(function: Any, *arguments: Any) -> tuple[threading.Thread, list[Any]]:
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(function(*arguments))
        except (AccessDenied, ProtocolError, OSError) as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


def test_peers_that_know_the_token_accept_each_other(pair: tuple[socket.socket, socket.socket]) -> None:
    thread, result = answer_of(accept_with_proof, pair[0], TOKEN)
    connect_with_proof(pair[1], TOKEN, "node-1")
    thread.join(30)
    assert result == ["node-1"]


def test_a_node_agent_with_another_token_is_rejected_and_sends_no_proof(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    thread, result = answer_of(accept_with_proof, pair[0], TOKEN)
    with pytest.raises(AccessDenied, match="a different token"):
        connect_with_proof(pair[1], OTHER_TOKEN, "node-1")
    pair[1].sendall(frame(b'{"proof": "", "hello": {}}'))
    thread.join(30)
    assert isinstance(result[0], AccessDenied)


def test_a_proof_for_one_node_agent_is_rejected_for_another_name(pair: tuple[socket.socket, socket.socket]) -> None:
    thread, result = answer_of(accept_with_proof, pair[0], TOKEN)
    side = ClientSide(TOKEN, "node-1")
    opening = json.loads(side.begin()) | {"service": "node-2"}
    pair[1].sendall(frame(json.dumps(opening).encode()))
    with pytest.raises(AccessDenied):
        side.answer(receive(pair[1], MESSAGE_LIMIT), {})
    pair[1].close()
    thread.join(30)
    assert isinstance(result[0], ProtocolError)


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n" * 4, frame(bytes(70_000)), frame(bytes(100))])
def test_noise_is_rejected_before_it_is_read(pair: tuple[socket.socket, socket.socket], noise: bytes) -> None:
    thread, result = answer_of(accept_with_proof, pair[0], TOKEN)
    pair[1].settimeout(1)
    with contextlib.suppress(OSError):
        pair[1].sendall(noise)
    thread.join(30)
    assert isinstance(result[0], ProtocolError)


def test_the_token_is_not_in_the_repr() -> None:
    spec = NodeAgentSpec("s", "h", 1, Token("a very secret token"), 1, 1, True, 1, {}, (3, 11), None)
    assert "a very secret token" not in f"{spec!r} {spec}"


def test_a_node_agent_that_was_not_requested_is_rejected() -> None:
    listener = NodeListener("127.0.0.1", TOKEN, lambda name, _: name == "expected", fatal)
    try:
        spec = NodeAgentSpec("other", "127.0.0.1", listener.port, TOKEN, 1, 1, True, 2, {}, THIS, None)
        assert "was closed" in run_node_agent(spec)
    finally:
        listener.close()


def test_a_node_agent_with_another_python_version_ends_with_a_reason() -> None:
    spec = NodeAgentSpec("s", "127.0.0.1", 1, TOKEN, 1, 1, True, 2, {}, (3, 2), None)
    assert "the engine's process has 3.2" in run_node_agent(spec)


# --- the loss of node agents ------------------------------------------------------------------------------------------


def calls(count: int) -> list[Call]:
    target = Packer().pack(agents.echo, "it")
    return [Call(number, target, number, str(number)) for number in range(count)]


@pytest.mark.parametrize(("held", "alone"), [(1, True), (3, False)])
def test_calls_of_a_node_agent_that_is_gone_are_lost(
    pair: tuple[socket.socket, socket.socket], held: int, alone: bool
) -> None:
    worker = NodeHandle("far", pair[0])
    worker.send(calls(held))
    pair[1].close()
    report = worker.poll()
    assert report.ended is not None
    assert [(outcome.ending, outcome.alone) for outcome in report.outcomes] == [(Ending.LOST, alone)] * held
    assert {outcome.error.type for outcome in report.outcomes if outcome.error} == {"WorkerLost"}
    assert worker.in_flight == 0


def test_calls_are_cancelled_without_a_report_of_the_node_agent_after_a_time(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    clock = ManualClock()
    worker = NodeHandle("far", pair[0], clock)
    worker.send(calls(2))
    assert worker.kill("the run was cancelled", cancelled=True).outcomes == []
    worker.send([Call(9, calls(1)[0].target, 9, "9")])
    clock.advance(5)
    assert worker.deadline is not None
    assert worker.deadline < clock.now
    report = worker.poll()
    assert sorted((outcome.number, outcome.ending) for outcome in report.outcomes) == [
        (0, Ending.CANCELLED),
        (1, Ending.CANCELLED),
    ]
    assert (report.ended, worker.in_flight) == (None, 1)


def poll_until(worker: NodeHandle, clock: ManualClock, end: float) -> WorkerReport:
    """Poll a handle as the engine does, at its deadlines, until `end` or until the node agent counts as lost."""
    report = worker.poll()
    while clock.now < end and report.ended is None:
        assert worker.deadline is not None
        clock.advance(worker.deadline - clock.now)
        report = worker.poll()
    return report


def test_a_silent_node_agent_counts_as_lost(pair: tuple[socket.socket, socket.socket]) -> None:
    clock = ManualClock()
    worker = NodeHandle("far", pair[0], clock)
    worker.send(calls(1))
    assert poll_until(worker, clock, SILENCE_LIMIT - HEARTBEAT).ended is None
    report = poll_until(worker, clock, SILENCE_LIMIT + 2 * HEARTBEAT)
    assert "has sent nothing" in (report.ended or "")
    assert [outcome.ending for outcome in report.outcomes] == [Ending.LOST]


def test_time_in_which_the_program_was_frozen_does_not_count_as_silence(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    clock = ManualClock()
    worker = NodeHandle("far", pair[0], clock)
    worker.send(calls(1))
    for _ in range(3):
        clock.advance(10_000.0)
        assert worker.poll().ended is None
        pair[1].sendall(encode(NodeReport(OutcomeBatch.of([]), "", True, [], "", answered=True)))
        assert poll_until(worker, clock, clock.now + SILENCE_LIMIT / 2).ended is None
    assert "has sent nothing" in (poll_until(worker, clock, clock.now + 2 * SILENCE_LIMIT).ended or "")


@pytest.mark.slow
def test_broken_connections_lose_no_task() -> None:
    """Connections are cut in the middle of the run; new node agents take over."""
    cut: set[str] = set()

    class Fragile(ThreadRuntime):
        def accept_node_agent(self, name: str, connection: socket.socket) -> bool:
            if len(cut) < 4:
                cut.add(name)
                if len(cut) == 4:
                    connection.shutdown(socket.SHUT_RDWR)  # before its worker can have sent anything
                else:
                    threading.Timer(0.3, connection.shutdown, [socket.SHUT_RDWR]).start()
            return super().accept_node_agent(name, connection)

    config = RunConfig(cls=Fragile, worker_num=2, concurrency=4, max_retries=10)
    tasks = [Task(0.1, agents.nap if i % 2 else agents.sleep, id=str(i)) for i in range(60)]
    responses = Runners.sync_run_task(tasks, config)
    assert len(responses) == 60
    assert all(response.success for response in responses.values())
    assert len(cut) == 4


def test_a_node_agent_that_fails_is_replaced_and_its_worker_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    step = NodeAgent.step
    left: list[int] = []

    def fail_once(self: NodeAgent) -> None:
        step(self)
        if self.worker.in_flight and not left:
            left.append(self.worker.pid)
            raise SystemExit

    monkeypatch.setattr(NodeAgent, "step", fail_once)
    config = RunConfig(cls=ThreadRuntime, worker_num=1, max_retries=2)
    response = Runners.sync_run(0.2, agents.sleep, config)
    assert (response.success, response.executions) == (True, 2)
    programs.wait_until(lambda: not any(map(programs.alive, left)))


def test_node_agents_in_one_process_end_independently(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(spec: NodeAgentSpec) -> str:
        if spec.name == "second":
            raise SystemExit("gone")
        return "the engine asked for it"

    def start(thread: threading.Thread) -> None:
        if thread.name == "third":
            raise RuntimeError("can't start new thread")
        begin(thread)

    begin = threading.Thread.start
    monkeypatch.setattr("paragent.engines._node_agent.run_node_agent", run)
    monkeypatch.setattr(threading.Thread, "start", start)
    names = ["first", "second", "third"]
    specs = [NodeAgentSpec(name, "127.0.0.1", 1, TOKEN, 1, 1, True, 2, {}, THIS, None) for name in names]
    assert run_node_agents(specs) == {
        "first": "the engine asked for it",
        "second": "SystemExit: gone",
        "third": "no thread for this worker: can't start new thread",
    }


def test_node_agents_that_lose_their_connection_do_not_count_as_failed_starts() -> None:
    cut: set[str] = set()

    class CutOff(ThreadRuntime):
        def accept_node_agent(self, name: str, connection: socket.socket) -> bool:
            if len(cut) < 5:
                cut.add(name)
                connection.shutdown(socket.SHUT_RDWR)
            return super().accept_node_agent(name, connection)

    response = Runners.sync_run("x", agents.echo, RunConfig(cls=CutOff, worker_num=1, max_retries=10))
    assert (response.answer, response.executions, len(cut)) == ("x", 6, 5)


def test_workers_that_cannot_start_fail_the_engine() -> None:
    class NoPython(ThreadRuntime):
        def node_agent_spec(self, name: str, host: str, port: int) -> NodeAgentSpec:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("PYTHONHOME", "/nowhere")
                return super().node_agent_spec(name, host, port)

    with pytest.raises(EngineFailed, match="before they are ready"):
        Runners.sync_run("x", agents.echo, RunConfig(cls=NoPython, worker_num=1, max_retries=10))


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["ray", "spark"])
def test_options_are_checked_when_an_engine_is_opened(engine: str) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'start_timeout'\?.*driver_host"):
        open_engine(RunConfig(engine_name=engine, engine_options={"start_timout": 3}))
    with pytest.raises(ConfigError, match="must be of the type int or float"):
        open_engine(RunConfig(engine_name=engine, engine_options={"start_timeout": "long"}))
    with pytest.raises(ConfigError, match="must be a number of seconds above 0"):
        open_engine(RunConfig(engine_name=engine, engine_options={"start_timeout": -1}))


@pytest.mark.parametrize("engine", ["local", "inline"])
def test_engines_of_this_host_reject_settings_of_clusters(engine: str) -> None:
    with pytest.raises(ConfigError, match=f"the engine '{engine}' has no option 'address'"):
        open_engine(RunConfig(engine_name=engine, engine_options={"address": "head:6379"}))
    with pytest.raises(ConfigError, match=f"the engine '{engine}' runs on this host, so in_local=False cannot be used"):
        open_engine(RunConfig(engine_name=engine, in_local=False))


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("spark", "pyspark")])
def test_a_missing_extra_raises_an_error_with_the_install_command(
    engine: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else object())
    with pytest.raises(MissingExtra, match=re.escape(install_command([engine]))):
        open_engine(RunConfig(engine_name=engine))


UNREACHABLE = [
    ("ray", {"address": "127.0.0.1:1"}, {}, "does not answer"),
    ("ray", {}, {"RAY_ADDRESS": "127.0.0.1:1"}, "does not answer"),
    ("ray", {}, {"RAY_ADDRESS": "local"}, "would start one"),
    ("spark", {"master": "spark://127.0.0.1:1"}, {}, "does not answer"),
    ("spark", {}, {"SPARK_MASTER": "spark://127.0.0.1:1"}, "does not answer"),
    ("spark", {}, {"SPARK_MASTER": ""}, "not set"),
    ("spark", {"master": "local[2]"}, {}, "needs a cluster"),
    ("spark", {"master": "127.0.0.1:7077"}, {}, r"has no scheme; did you mean spark://127.0.0.1:7077\?"),
    ("spark", {}, {"SPARK_MASTER": "head"}, r"has no scheme; did you mean spark://head:7077\?"),
]


@pytest.mark.parametrize(
    ("engine", "options", "variables", "said"),
    [pytest.param(*case, marks=getattr(pytest.mark, case[0])) for case in UNREACHABLE],
)
def test_an_unreachable_cluster_raises_an_error_within_seconds(
    engine: str, options: dict[str, Any], variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_ADDRESS", "SPARK_MASTER", "MASTER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config = RunConfig(engine_name=engine, in_local=False, engine_options=options)
    importlib.import_module("ray" if engine == "ray" else "pyspark")  # the import may take longer than the test
    started = time.monotonic()
    with pytest.raises(EngineFailed, match=said):
        Runners.sync_run(1, agents.echo, config)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("engine", "options", "said"),
    [
        pytest.param(
            "ray", {"address": "127.0.0.1:1"}, "the address '127.0.0.1:1' is a cluster", marks=pytest.mark.ray
        ),
        pytest.param("ray", {"address": "auto"}, "the address 'auto' is a cluster", marks=pytest.mark.ray),
        pytest.param(
            "spark", {"master": "spark://h:1"}, "the master 'spark://h:1' is a cluster", marks=pytest.mark.spark
        ),
    ],
)
def test_the_address_of_a_cluster_needs_in_local_false(engine: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(EngineFailed, match=rf"{said}; add in_local=False \(--engine-address\) to use it"):
        Runners.sync_run(1, agents.echo, RunConfig(engine_name=engine, engine_options=options))


WITHOUT_EXECUTORS = """
import sys
from paragent import EngineFailed, RunConfig, Runners
conf = {"spark.executor.memory": "3g"}
options = {"master": sys.argv[1], "start_timeout": 1, "conf": conf}
try:
    Runners.sync_run(1, len, RunConfig(engine_name="spark", in_local=False, worker_num=2, engine_options=options))
except EngineFailed as error:
    print(error)
"""


@pytest.mark.spark
@pytest.mark.integration
def test_a_spark_without_executors_raises_an_error_that_names_the_memory(tmp_path: Path) -> None:
    """The cluster has a master and no node."""
    import pyspark

    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master"]
    with BoundedPopen(
        [*command, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"],
        env={**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as master:
        try:
            assert master.stderr is not None
            address = next(line.split()[-1] for line in master.stderr if "Starting Spark master at" in line)
            program = [sys.executable, "-c", WITHOUT_EXECUTORS, address]
            done = subprocess.run(program, capture_output=True, text=True, timeout=110, check=True)
        finally:
            master.kill()
    assert "has started no executor. Either no node can hold one: each needs 3g of memory" in done.stdout


KILLED_JAVA = """
import psutil
from pyspark.sql import SparkSession
from paragent import RunConfig, Runners

session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
java = psutil.Process().children()
for process in java:
    process.kill()
psutil.wait_procs(java, timeout=60)
print(Runners.sync_run(-1, abs, RunConfig(engine_name="spark", worker_num=1)).answer)
"""


@pytest.mark.spark
@pytest.mark.integration
def test_a_spark_session_whose_java_was_killed_is_replaced() -> None:
    program = [sys.executable, "-c", KILLED_JAVA]
    done = subprocess.run(program, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"


WITHOUT_JAVA = """
from paragent import EngineFailed, RunConfig, Runners
try:
    Runners.sync_run(1, len, RunConfig(engine_name="spark"))
except EngineFailed as error:
    print(error)
"""


@pytest.mark.spark
def test_a_missing_java_raises_an_error_with_the_install_command() -> None:
    """Runs in a separate process: pyspark would reuse a Java process that it started earlier."""
    bare = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAVA], env=bare, capture_output=True, text=True, timeout=110, check=True
    )
    assert "apt-get install openjdk-17-jre-headless" in done.stdout


class LateCluster(ThreadCluster):
    """Starts no node agent before the engine has asked why."""

    def start(self) -> str:
        self._held: list[NodeAgentSpec] = []
        return super().start()

    def launch(self, specs: Sequence[NodeAgentSpec]) -> None:
        self._held += specs

    def shortage(self) -> str:
        super().launch(self._held)
        self._held = []
        return "they are late"


class LateRuntime(ThreadRuntime):
    def open_cluster(self) -> Cluster:
        return LateCluster()


def test_each_shortage_of_workers_is_warned_about_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning while the cluster starts must not hide one about a node that is lost later."""
    monkeypatch.setattr("paragent.engines._cluster._WARN_AFTER", 0.1)
    with LateRuntime(RunConfig(worker_num=2, concurrency=1)) as engine:
        for workers in (1, 2):
            Runners.sync_run_task([Task(0.1, agents.sleep) for _ in range(workers)], engine=engine)
            wait_until(lambda expected=workers: len(caplog.messages) == expected)  # type: ignore[misc]
    assert caplog.messages == ["1 of 2 workers have not started: they are late"] * 2

"""The Spark engine: node agents run in Spark tasks, each in a job of its own."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.ids import new_id
from paragent._internal.networks import local_address_towards
from paragent._internal.text import counted
from paragent.engines._cluster import Cluster, ClusterRuntime, require_reachable
from paragent.engines._node_agent import run_node_agents
from paragent.errors import EngineFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from paragent.config import RunConfig
    from paragent.engines._node_agent import NodeAgentSpec

__all__ = ["OPTIONS", "JavaGateway", "SparkCluster", "SparkRuntime"]


_NO_JAVA = (
    "Spark needs a Java runtime, version 17 or later; neither JAVA_HOME nor PATH has one. "
    "Debian or Ubuntu: apt-get install openjdk-17-jre-headless; conda: conda install openjdk"
)
_EXIT_TIMEOUT = 10.0
"""Seconds for Java to end after its standard input was closed."""
_MAX_STARTS = 3
"""How often the engine tries to start Java: pyspark forks for it, and a fork next to the threads of gRPC or Ray may die before
it executes Java."""


class JavaGateway:
    """The Java process of a Spark context; its output goes to a file, not to the user's terminal.

    Raises:
        EngineFailed: Java is not installed or does not start.
    """

    def __init__(self, conf: Any) -> None:
        from pyspark import SparkContext
        from pyspark.java_gateway import launch_gateway

        if SparkContext._gateway is not None:
            self.java, self._process, self._log = SparkContext._gateway, None, None
            return
        require_java()
        self._log = tempfile.NamedTemporaryFile(prefix="paragent-spark-", suffix=".log")  # noqa: SIM115 - closed by close
        for number in range(1, _MAX_STARTS + 1):
            try:
                self.java = launch_gateway(conf, {"stdout": self._log, "stderr": subprocess.STDOUT})
                break
            except Exception as error:
                if number == _MAX_STARTS:
                    raise EngineFailed(f"Spark's Java process does not start: {self.explain(error)}") from error
        self._process = self.java.proc

    def explain(self, error: BaseException) -> str:
        """Return an error in a few words, with the last output of Java."""
        text = " ".join(str(error).split())[:500]
        if self._log is None:
            return text
        written = [line for line in Path(self._log.name).read_text(errors="replace").splitlines() if line.strip()]
        return f"{text} The last output of Java: {' | '.join(written[-5:])[:1000]}"

    def close(self) -> None:
        """End the Java process if this object started it."""
        from pyspark import SparkContext

        if self._process is None:
            return
        with suppress(Exception):  # it may be gone already; otherwise it is killed below
            self.java.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
        self._process.stdin.close()  # this tells it to end
        try:
            self._process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        if self._log is not None:
            self._log.close()


def _hide_pandas_warning() -> None:
    """Ignore a warning that users cannot do anything about.

    pyspark imports its module for tests when it converts the first value, and that module warns if pandas 3 is installed. The
    engine does not use pandas; code of the user that does so with Spark still gets the warning.
    """
    message = "PySpark does not yet fully support pandas"
    warnings.filterwarnings("ignore", message, FutureWarning, module=r"pyspark\.testing\.utils")


def _has_ended(gateway: Any) -> bool:
    """Return whether the Java process that pyspark started for a gateway has ended, for example because it was killed."""
    process = getattr(gateway, "proc", None)
    return process is not None and process.poll() is not None


def require_java() -> None:
    """Check that a Java runtime is installed.

    Raises:
        EngineFailed: there is none; the message says how to install one.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        if not (Path(home) / "bin" / "java").exists():
            raise EngineFailed(
                f"JAVA_HOME is {home}, which has no bin/java; set it to the folder of a Java runtime, version 17 or later, or "
                "remove the variable to use the one in PATH"
            )
        return
    if shutil.which("java") is None:
        raise EngineFailed(_NO_JAVA)


OPTIONS: dict[str, tuple[type, ...]] = {
    "conf": (dict,),
    "driver_host": (str,),
    "master": (str,),
    "partitions": (int,),
    "python": (str,),
    "start_timeout": (int, float),
}
"""The engine options and their types."""
_DEFAULT_PORT = 7077
_EXECUTORS_STABLE = 1.0
"""Seconds without a new executor after which the cluster counts as complete."""
_EXECUTORS_TIMEOUT = 10.0
"""Seconds to wait for that; afterwards several node agents share a task if there are too few."""


class SparkCluster(Cluster):
    """The Spark context that this process already has, or one that is created and stopped for an engine."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._options = dict(config.engine_options)
        self._gateway: JavaGateway | None = None
        self._context: Any = None
        self._ours = False
        self._group = new_id("paragent")
        self._ended: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._jobs: list[threading.Thread] = []
        self._slots: int | None = None
        self._most_executors = 0
        """The largest number of executors that were seen."""

    def start(self) -> str:
        """Use the existing context; otherwise create one for this host, or for the configured cluster."""
        from pyspark import SparkContext

        _hide_pandas_warning()
        if _has_ended(SparkContext._gateway):  # nothing can be done with its context, not even stopping it
            SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
        self._context = SparkContext._active_spark_context
        if self._context is None:
            self._ours = True
            self._context = self._create_context(self._master())
        return str(self._options.get("driver_host") or self._context.getConf().get("spark.driver.host"))

    def launch(self, specs: Sequence[NodeAgentSpec]) -> None:
        """Submit a job for each task; a task runs one node agent, or several if there are too few task slots."""
        tasks = min(len(specs), self._task_count())
        for index in range(tasks):
            thread = threading.Thread(
                target=self._run_job, args=(list(specs[index::tasks]),), name="paragent-job", daemon=True
            )
            thread.start()
            self._jobs.append(thread)

    def ended(self) -> list[tuple[str, str]]:
        """Return the node agents of the jobs that ended."""
        self._jobs = [thread for thread in self._jobs if thread.is_alive()]
        ended = []
        with suppress(queue.Empty):
            while True:
                ended.append(self._ended.get_nowait())
        return ended

    def shortage(self) -> str:
        """Return how many tasks Spark runs at a time, which executors it has lost, or why it may have none."""
        is_local = self._context.master.startswith("local")
        executors = 0 if is_local else self._count_executors()
        if executors < self._most_executors:
            return (
                f"Spark at {self._context.master} has {executors} of the {counted(self._most_executors, 'executor')} that it "
                "had: a node was lost, or its executor ended. The tasks continue in the workers that are left, if there are any. "
                "Start the node again; the web page of the master (port 8080) shows the nodes"
            )
        if not is_local and not executors:
            memory = self._context.getConf().get("spark.executor.memory", "1g")
            return (
                f"Spark at {self._context.master} has started no executor. Either no node can hold one: each needs {memory} of "
                "memory; lower spark.executor.memory or spark.executor.cores in engine_options={'conf': ...} "
                "(--engine-option conf=...). Or other applications use all cores, or the executors cannot connect to this "
                "host. The web page of the master (port 8080) shows the nodes and the waiting applications"
            )
        slots = self._slots_now()
        if slots >= min(self._config.workers, self._options.get("partitions", self._config.workers)):
            lost = "" if is_local else ", or Spark has not noticed yet that a node was lost"
            return (
                f"Spark at {self._context.master} runs {counted(slots, 'task')} at a time, which is enough. A host whose cores "
                f"are busy starts processes slowly. Otherwise, other jobs may occupy Spark{lost}. The web page of the "
                "application (port 4040) shows its tasks and executors"
            )
        return (
            f"Spark at {self._context.master} runs {counted(slots, 'task')} at a time, and every worker "
            "occupies one. Lower worker_num (--workers), or let one Spark task run several workers: "
            "engine_options={'partitions': ...} (--engine-option partitions=...)"
        )

    def stop(self) -> None:
        """Cancel the jobs, and stop the context and its Java process if this engine created them."""
        if self._context is not None:
            if self._jobs:
                with suppress(Exception):  # the user may have stopped the context meanwhile
                    self._context.cancelJobGroup(self._group)
            for thread in self._jobs:
                thread.join(timeout=5.0)
            if self._ours:
                self._context.stop()
        if self._gateway is not None:
            self._gateway.close()

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _run_job(self, specs: list[NodeAgentSpec]) -> None:
        """Run one job, in a thread of its own, until its node agents have ended."""
        context = self._context
        endings: dict[str, str] = {}
        reason = "Spark started the task a second time"
        try:
            context.setJobGroup(self._group, self._config.job_name)
            agents = context.parallelize([specs], 1).mapPartitions(_run_in_task)
            with self._python():
                _ = agents._jrdd  # the interpreter is chosen here
            endings = dict(agents.collect())
        except Exception as error:  # noqa: BLE001 - whatever the error is, these node agents have ended
            reason = _cause(error)
        for spec in specs:
            self._ended.put((spec.name, endings.get(spec.name, reason)))

    @contextmanager
    def _python(self) -> Iterator[None]:
        """Let tasks on this host use this interpreter, which has the packages that the program imports."""
        before = self._context.pythonExec
        chosen = self._options.get("python")
        if chosen is None and self._config.in_local and "PYSPARK_PYTHON" not in os.environ:
            chosen = sys.executable
        with _PYTHON_LOCK:
            self._context.pythonExec = chosen or before
            try:
                yield
            finally:
                self._context.pythonExec = before

    def _task_count(self) -> int:
        """Return the number of Spark tasks over which the workers are distributed."""
        if "partitions" in self._options:
            return max(1, int(self._options["partitions"]))
        if self._slots is None:
            self._slots = self._count_slots()
        return max(1, self._slots)

    def _count_slots(self) -> int:
        """Return how many tasks run at a time, after waiting for the executors to register."""
        if self._context.master.startswith("local"):
            return self._slots_now()
        deadline = time.monotonic() + _EXECUTORS_TIMEOUT
        seen, since = 0, time.monotonic()
        while time.monotonic() < deadline:
            count = self._count_executors()
            if count != seen:
                seen, since = count, time.monotonic()
            slots = self._slots_now()
            if count and (slots >= self._config.workers or time.monotonic() - since > _EXECUTORS_STABLE):
                return slots
            time.sleep(0.1)
        return self._config.workers

    def _count_executors(self) -> int:
        count = len(self._context._jsc.sc().statusTracker().getExecutorInfos()) - 1  # the list includes the driver
        self._most_executors = max(self._most_executors, count)
        return count

    def _slots_now(self) -> int:
        """Return how many tasks run at a time in the executors that Spark has now."""
        context = self._context._jsc.sc()
        try:  # exact; `defaultParallelism` of a cluster is never less than 2
            return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
        except Exception:  # noqa: BLE001 - it is not part of Spark's public interface, so another version may not have it
            return int(self._context.defaultParallelism)

    # --- the context --------------------------------------------------------------------------------------------------

    def _master(self) -> str:
        """Return the master to use."""
        conf = self._options.get("conf", {})
        named = self._options.get("master") or conf.get("spark.master")
        if not self._config.in_local:
            named = named or os.environ.get("SPARK_MASTER") or os.environ.get("MASTER")
        _require_scheme(str(named or "local"))
        if self._config.in_local:
            if named is None:
                return (
                    f"local[{2 * self._config.workers}]"  # twice, for successors of node agents that are still ending
                )
            if not str(named).startswith("local"):
                raise EngineFailed(
                    f"the master {named!r} is a cluster; add in_local=False (--engine-address) to use it"
                )
            return str(named)
        if not named or str(named).startswith("local"):
            raise EngineFailed(
                f"in_local=False needs a cluster, but the master is {named or 'not set'}: set "
                "engine_options={'master': 'spark://host:7077'} (--engine-address) or SPARK_MASTER, or use in_local=True"
            )
        if str(named).startswith("sc://"):
            raise EngineFailed(
                "Spark Connect (sc://) cannot run this kind of Python task; use the master itself, spark://..."
            )
        return str(named)

    def _create_context(self, master: str) -> Any:
        from pyspark import SparkConf, SparkContext

        settings = {
            "spark.app.name": self._config.job_name,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.speculation": "false",
            "spark.driver.host": _driver_host(master),
            "spark.driver.bindAddress": _driver_host(master),
            **{str(key): str(value) for key, value in self._options.get("conf", {}).items()},
            "spark.master": master,
        }
        conf = SparkConf(loadDefaults=False)
        for key, value in settings.items():
            conf.set(key, value)
        self._gateway = JavaGateway(conf)
        try:
            return SparkContext(conf=conf, gateway=self._gateway.java)
        except Exception as error:
            raise EngineFailed(f"Spark at {master} cannot be used: {self._gateway.explain(error)}") from error


_PYTHON_LOCK = threading.Lock()
"""Protects the context's `pythonExec` while it differs from the user's choice."""


def _require_scheme(master: str) -> None:
    """Check the form of a master: without this, Spark fails with a stack trace of Java.

    Raises:
        EngineFailed: it is the address of a host.
    """
    if "://" in master or master == "yarn" or master.startswith("local"):
        return
    address = master if ":" in master else f"{master}:{_DEFAULT_PORT}"
    raise EngineFailed(f"the master {master!r} has no scheme; did you mean spark://{address}?")


def _driver_host(master: str) -> str:
    """Return the address by which the master reaches this host; checks that the master answers."""
    if master.startswith("local"):
        return "127.0.0.1"
    if not master.startswith("spark://"):
        return local_address_towards()
    first = master.removeprefix("spark://").split(",")[0]
    return local_address_towards(require_reachable(first, _DEFAULT_PORT, "the Spark master"))


def _cause(error: BaseException) -> str:
    """Return the cause of an error: Spark wraps the exception of a task in stack traces of two languages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.strip().startswith("at ")]
    raised = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception"))]
    return " ".join((raised[-1:] or lines)[:6])[:800]


def _run_in_task(groups: Iterable[list[NodeAgentSpec]]) -> Iterator[tuple[str, str]]:
    """Run node agents in a Spark task; yield the name of each and how it ended."""
    for specs in groups:
        yield from run_node_agents(specs).items()


class SparkRuntime(ClusterRuntime):
    """Runs every call in one of a fixed number of workers that Spark places; docs/guide/engines.md lists its options.

    Spark only starts the node agents. The engine rejects a node agent that Spark starts a second time, by speculation or
    after the loss of an executor, so no call is repeated without the runner's decision.
    """

    error_hint = "See the logs of Spark's executors"
    extra, package, options = "spark", "pyspark", OPTIONS

    def open_cluster(self) -> Cluster:
        """Return the Spark cluster of the configuration."""
        return SparkCluster(self.config)

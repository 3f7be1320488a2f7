"""Spark as a place for stations: a session of our own or the user's, and one job for each task that hosts stations."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.ids import new_id
from paragent.engines._cluster import Cluster, ClusterRuntime, local_address_towards, require_reachable
from paragent.engines._node_agent import host
from paragent.errors import EngineFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from paragent.config import RunConfig
    from paragent.engines._node_protocol import Posting

__all__ = ["OPTIONS", "Gateway", "SparkCluster", "SparkRuntime"]


_NO_JAVA = (
    "Spark needs a Java runtime, version 17 or later, and there is none: neither JAVA_HOME nor PATH has one. "
    "Debian or Ubuntu: apt-get install openjdk-17-jre-headless; conda: conda install openjdk"
)
_EXIT_WAIT = 10.0
"""Seconds for Java to end after its input was closed."""
_STARTS = 3
"""How often Java is started: pyspark forks for it, and a fork beside the threads of gRPC or Ray dies at times before it is
Java."""


class Gateway:
    """A Java process for one Spark context; what it writes goes to a file, not to the user's terminal.

    Raises:
        EngineFailed: there is no Java, or it does not start.
    """

    def __init__(self, conf: Any) -> None:
        from pyspark import SparkContext
        from pyspark.java_gateway import launch_gateway

        if SparkContext._gateway is not None:
            self.java, self._process, self._log = SparkContext._gateway, None, None
            return
        require_java()
        self._log = tempfile.NamedTemporaryFile(prefix="paragent-spark-", suffix=".log")  # noqa: SIM115 - closed by close
        for number in range(1, _STARTS + 1):
            try:
                self.java = launch_gateway(conf, {"stdout": self._log, "stderr": subprocess.STDOUT})
                break
            except Exception as error:
                if number == _STARTS:
                    raise EngineFailed(f"Spark's Java process does not start: {self.explain(error)}") from error
        self._process = self.java.proc

    def explain(self, error: BaseException) -> str:
        """Return an error in few words, with the end of what Java wrote."""
        text = " ".join(str(error).split())[:500]
        if self._log is None:
            return text
        written = [line for line in Path(self._log.name).read_text(errors="replace").splitlines() if line.strip()]
        return f"{text} Java wrote last: {' | '.join(written[-5:])[:1000]}"

    def close(self) -> None:
        """End the Java process if this is the one who started it."""
        from pyspark import SparkContext

        if self._process is None:
            return
        with suppress(Exception):  # it may be gone already, and is made to go below
            self.java.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
        self._process.stdin.close()  # how it is told to end
        try:
            self._process.wait(_EXIT_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        if self._log is not None:
            self._log.close()


def require_java() -> None:
    """Check that there is a Java runtime.

    Raises:
        EngineFailed: there is none; the message says how to get one.
    """
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
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
_EXECUTORS_SETTLE = 1.0
"""Seconds without a new executor after which a cluster is taken to be complete."""
_EXECUTORS_COME = 10.0
"""Seconds to wait for that; stations of which there are too many share the tasks there are."""


class SparkCluster(Cluster):
    """The Spark context that this process has already, or one that is made, and stopped, for one engine."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._options = dict(config.engine_options)
        self._gateway: Gateway | None = None
        self._context: Any = None
        self._ours = False
        self._group = new_id("paragent")
        self._ended: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._jobs: list[threading.Thread] = []
        self._places: int | None = None

    def start(self) -> str:
        """Use the context that is there; else make one for this machine, or for the cluster that was named."""
        from pyspark import SparkContext

        self._context = SparkContext._active_spark_context
        if self._context is None:
            self._ours = True
            self._context = self._make_context(self._master())
        return str(self._options.get("driver_host") or self._context.getConf().get("spark.driver.host"))

    def launch(self, postings: Sequence[Posting]) -> None:
        """Submit a job for each task; a task hosts one station, or several where there are fewer places."""
        tasks = min(len(postings), self._task_count())
        for index in range(tasks):
            thread = threading.Thread(
                target=self._host, args=(list(postings[index::tasks]),), name="paragent-job", daemon=True
            )
            thread.start()
            self._jobs.append(thread)

    def ended(self) -> list[tuple[str, str]]:
        """Return what the jobs that ended have said."""
        self._jobs = [thread for thread in self._jobs if thread.is_alive()]
        ended = []
        with suppress(queue.Empty):
            while True:
                ended.append(self._ended.get_nowait())
        return ended

    def shortage(self) -> str:
        """Say how many tasks Spark runs at a time."""
        return (
            f"Spark at {self._context.master} runs {self._context.defaultParallelism} tasks at a time, and every worker "
            "occupies one. Lower worker_num, or let one Spark task host several workers: engine_options={'partitions': ...}"
        )

    def stop(self) -> None:
        """Cancel the jobs, and stop the context and its Java process if this engine made them."""
        if self._context is not None:
            if self._jobs:
                with suppress(Exception):  # a context that the user stopped meanwhile
                    self._context.cancelJobGroup(self._group)
            for thread in self._jobs:
                thread.join(timeout=5.0)
            if self._ours:
                self._context.stop()
        if self._gateway is not None:
            self._gateway.close()

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _host(self, postings: list[Posting]) -> None:
        """Run one job, in a thread of its own, until its stations have ended."""
        context = self._context
        endings: dict[str, str] = {}
        reason = "Spark started the task a second time"
        try:
            context.setJobGroup(self._group, self._config.job_name)
            stations = context.parallelize([postings], 1).mapPartitions(_serve)
            with self._python():
                _ = stations._jrdd  # where the interpreter is chosen
            endings = dict(stations.collect())
        except Exception as error:  # noqa: BLE001 - however Spark failed, these stations are over
            reason = _cause(error)
        for posting in postings:
            self._ended.put((posting.name, endings.get(posting.name, reason)))

    @contextmanager
    def _python(self) -> Iterator[None]:
        """Have tasks on this machine use this very interpreter, which has what the program imports."""
        before = self._context.pythonExec
        chosen = self._options.get("python")
        if chosen is None and self._config.in_local and "PYSPARK_PYTHON" not in os.environ:
            chosen = sys.executable
        with _PYTHON_CHOICE:
            self._context.pythonExec = chosen or before
            try:
                yield
            finally:
                self._context.pythonExec = before

    def _task_count(self) -> int:
        """Return over how many tasks the workers are spread."""
        if "partitions" in self._options:
            return max(1, int(self._options["partitions"]))
        if self._places is None:
            self._places = self._count_places()
        return max(1, self._places)

    def _count_places(self) -> int:
        """Return how many tasks run at a time, once the executors that are coming are there."""
        if self._context.master.startswith("local"):
            return int(self._context.defaultParallelism)
        deadline = time.monotonic() + _EXECUTORS_COME
        seen, since = 0, time.monotonic()
        while time.monotonic() < deadline:
            executors = self._context._jsc.sc().statusTracker().getExecutorInfos()
            there = len(executors) - 1  # the driver is in the list
            if there != seen:
                seen, since = there, time.monotonic()
            places = int(self._context.defaultParallelism)
            if there and (places >= self._config.workers or time.monotonic() - since > _EXECUTORS_SETTLE):
                return places
            time.sleep(0.1)
        return self._config.workers

    # --- the context --------------------------------------------------------------------------------------------------

    def _master(self) -> str:
        """Return the master to use; that of a cluster was checked to answer."""
        conf = self._options.get("conf", {})
        named = self._options.get("master") or conf.get("spark.master")
        if self._config.in_local:
            if named is None:
                return (
                    f"local[{2 * self._config.workers}]"  # a place for the successor of a station that is still ending
                )
            if not str(named).startswith("local"):
                raise EngineFailed(f"the master {named!r} is a cluster; add in_local=False to use it")
            return str(named)
        named = named or os.environ.get("SPARK_MASTER") or os.environ.get("MASTER")
        if not named or str(named).startswith("local"):
            raise EngineFailed(
                f"in_local=False needs a cluster, and the master is {named or 'not named'}: set "
                "engine_options={'master': 'spark://host:7077'} or SPARK_MASTER, or use in_local=True"
            )
        if str(named).startswith("sc://"):
            raise EngineFailed(
                "Spark Connect (sc://) cannot run Python tasks of this kind; name the master itself, spark://..."
            )
        return str(named)

    def _make_context(self, master: str) -> Any:
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
        self._gateway = Gateway(conf)
        try:
            return SparkContext(conf=conf, gateway=self._gateway.java)
        except Exception as error:
            raise EngineFailed(f"Spark at {master} cannot be used: {self._gateway.explain(error)}") from error


_PYTHON_CHOICE = threading.Lock()
"""Protects a context's `pythonExec` while it differs from the user's choice."""


def _driver_host(master: str) -> str:
    """Return the address of this machine that the master sees, having checked that it answers."""
    if master.startswith("local"):
        return "127.0.0.1"
    if not master.startswith("spark://"):
        return local_address_towards(("192.0.2.1", 9))  # an address for documentation: the way out of this machine
    first = master.removeprefix("spark://").split(",")[0]
    return local_address_towards(require_reachable(first, _DEFAULT_PORT, "the Spark master"))


def _cause(error: BaseException) -> str:
    """Return what matters of an error: Spark wraps what a task raised in the stacks of two languages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.strip().startswith("at ")]
    raised = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception"))]
    return " ".join((raised[-1:] or lines)[:6])[:800]


def _serve(groups: Iterable[list[Posting]]) -> Iterator[tuple[str, str]]:
    """The Spark task."""
    for postings in groups:
        yield from host(postings).items()


class SparkRuntime(ClusterRuntime):
    """Runs every attempt in one of a fixed number of workers that Spark places; docs/engines.md lists its options.

    Spark starts the workers and nothing else. A station that Spark starts a second time, because it speculates or because
    an executor was lost, is turned away by the driver, so no attempt is repeated behind the driver's back.
    """

    where_errors_are = "Look into the logs of Spark's executors"
    extra, package, options = "spark", "pyspark", OPTIONS

    def open_cluster(self) -> Cluster:
        """Spark as the configuration says."""
        return SparkCluster(self.config)

"""The cluster engines, compared with hand-written code on the same system."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from bench.executors import LIMIT, WORKERS
from bench.measure import Contender, Measurement, Run, Target
from bench.simple_agents import echo, nap, naps
from paragent import RunConfig, Runners, Task
from paragent.engines import open_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MEASUREMENTS", "RAY_TASKS", "plain_ray"]


@contextmanager
def ray_here() -> Iterator[Any]:
    """Yield a local Ray that all contenders share; the first one starts and stops it."""
    import ray

    if ray.is_initialized():
        yield ray
        return
    ray.init(address="local", num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def spark_here() -> Iterator[Any]:
    """Yield a local Spark context that all contenders share, with task slots for the engine's workers and the peer's tasks."""
    import sys

    from pyspark import SparkConf, SparkContext

    if SparkContext._active_spark_context is not None:
        yield SparkContext._active_spark_context
        return
    conf = SparkConf().setMaster(f"local[{2 * WORKERS}]").set("spark.ui.enabled", "false")
    context = SparkContext(conf=conf.set("spark.ui.showConsoleProgress", "false").set("spark.log.level", "ERROR"))
    context.pythonExec = sys.executable
    try:
        yield context
    finally:
        context.stop()


_SYSTEMS: dict[str, Callable[[], AbstractContextManager[Any]]] = {"ray": ray_here, "spark": spark_here}


def _paragent(
    engine_name: str, agent: Callable[[Any], Any], given: Callable[[int], Any], sample: Callable[[int, float], float]
) -> Callable[[int], AbstractContextManager[Run]]:
    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        config = RunConfig(engine_name=engine_name, worker_num=WORKERS)
        with ExitStack() as stack:
            stack.enter_context(_SYSTEMS[engine_name]())
            engine = stack.enter_context(open_engine(config))

            def run() -> float:
                started = perf_counter()
                tasks = [Task(input=given(number), agent=agent) for number in range(size)]
                responses = Runners.sync_run_task(tasks, config, engine=engine)
                answers = [response.unwrap() for response in responses.values()]
                seconds = perf_counter() - started
                assert answers == [given(number) for number in range(size)], "an answer is missing or wrong"
                return sample(size, seconds)

            yield run

    return opened


def _rate(size: int, seconds: float) -> float:
    return size / seconds


def _seconds(_: int, seconds: float) -> float:
    return seconds


@contextmanager
def plain_ray(size: int) -> Iterator[Run]:
    """Run one Ray task for each call, as in Ray's introduction."""
    with ray_here() as ray:
        remote = ray.remote(echo)

        def run() -> float:
            started = perf_counter()
            answers = ray.get([remote.remote(number) for number in range(size)], timeout=LIMIT)
            seconds = perf_counter() - started
            assert answers == list(range(size))
            return size / seconds

        yield run


@contextmanager
def _map_partitions(size: int) -> Iterator[Run]:
    """Run one Spark job for all calls, with a loop in each partition; all answers arrive together."""
    with spark_here() as context:

        def run() -> float:
            started = perf_counter()
            rows = context.parallelize(range(size), WORKERS).mapPartitions(lambda part: [echo(n) for n in part])
            answers = rows.collect()
            seconds = perf_counter() - started
            assert answers == list(range(size))
            return size / seconds

        yield run


@contextmanager
def _ray_loops(size: int) -> Iterator[Run]:
    """Run one Ray task for each worker; its event loop waits for its share of the naps."""
    with ray_here() as ray:
        remote = ray.remote(naps)

        def run() -> float:
            started = perf_counter()
            shares = ray.get([remote.remote(size // WORKERS, 0.1) for _ in range(WORKERS)], timeout=LIMIT)
            seconds = perf_counter() - started
            assert sum(shares) == size
            return seconds

        yield run


@contextmanager
def _spark_loops(size: int) -> Iterator[Run]:
    """Run one partition for each worker; its event loop waits for its share of the naps."""
    with spark_here() as context:

        def run() -> float:
            started = perf_counter()
            rows = context.parallelize([size // WORKERS] * WORKERS, WORKERS)
            slept = sum(rows.map(lambda count: naps(count, 0.1)).collect())
            seconds = perf_counter() - started
            assert slept == size
            return seconds

        yield run


def _number(number: int) -> int:
    return number


def _tenth(_: int) -> float:
    return 0.1


RAY_TASKS = "ray.remote, one task each"
_PARTITIONS = "Spark mapPartitions, by hand"

MEASUREMENTS = (
    Measurement(
        name="trivial-tasks-ray",
        title="10,000 trivial tasks on Ray",
        question="How many trivial tasks per second on Ray, with a full response for each?",
        unit="tasks/s",
        size=10_000,
        quick_size=1_000,
        contenders=(
            Contender("paragent on Ray", _paragent("ray", echo, _number, _rate), needs="ray"),
            Contender(RAY_TASKS, plain_ray, needs="ray"),
        ),
        targets=(Target("at least", 8, times=RAY_TASKS),),
    ),
    Measurement(
        name="trivial-tasks-spark",
        title="10,000 trivial tasks on Spark",
        question="How many trivial tasks per second on Spark, with a full response for each?",
        unit="tasks/s",
        size=10_000,
        quick_size=1_000,
        contenders=(
            Contender("paragent on Spark", _paragent("spark", echo, _number, _rate), needs="pyspark"),
            Contender(_PARTITIONS, _map_partitions, needs="pyspark"),
        ),
        targets=(Target("at least", round(1 / 1.5, 3), times=_PARTITIONS),),
    ),
    Measurement(
        name="waiting-ray",
        title="1,000 async waits on Ray",
        question="How long do 1,000 async waits of 0.1 s take on Ray? (ideal: 0.10 s)",
        unit="s",
        size=1_000,
        quick_size=1_000,
        contenders=(
            Contender("paragent on Ray", _paragent("ray", nap, _tenth, _seconds), needs="ray"),
            Contender("Ray, event loops by hand", _ray_loops, needs="ray"),
        ),
        targets=(Target("at most", 0.25),),
    ),
    Measurement(
        name="waiting-spark",
        title="1,000 async waits on Spark",
        question="How long do 1,000 async waits of 0.1 s take on Spark? (ideal: 0.10 s)",
        unit="s",
        size=1_000,
        quick_size=1_000,
        contenders=(
            Contender("paragent on Spark", _paragent("spark", nap, _tenth, _seconds), needs="pyspark"),
            Contender("Spark, event loops by hand", _spark_loops, needs="pyspark"),
        ),
        targets=(Target("at most", 0.5),),
    ),
)

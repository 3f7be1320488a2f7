"""Machines with a display: the time from one lease to the next, screenshots, pauses, CPU and memory."""

from __future__ import annotations

import os
import tempfile
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from bench.measure import Contender, Measurement, Run, Target
from bench.pool import lease_changes, proportional
from paragent import RolloutConfig, VMPoolManager, run_parallel_rollout
from paragent.demo.samples import sample_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MEASUREMENTS"]

_OURS, _BOOT, _RUNNING, _IN_GUEST = "paragent", "a boot per lease", "not paused", "in the guest"
_LIMIT = 600.0
_WATCHED_SECONDS = 10.0


def _pool(size: int, spares: int, provider: Any = "qemu") -> VMPoolManager:
    return VMPoolManager(provider, size, spares=spares, name="bench", path_to_vm="desktop")


def _reset(provider: Any, spares: int) -> Callable[[int], AbstractContextManager[Run]]:
    return lease_changes(
        lambda: _pool(1, spares, provider), lambda machine: machine.screenshot().startswith(b"\x89PNG"), spares
    )


def _screenshot(path: str) -> Callable[[int], AbstractContextManager[Run]]:
    """One screenshot, taken by the emulated display (empty path) or by the agent inside the machine."""

    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        with _pool(1, 0) as pool, pool.lease(timeout=_LIMIT) as machine:

            def run() -> float:
                started = perf_counter()
                for _ in range(size):
                    image = machine.request("GET", path, timeout=_LIMIT).body if path else machine.screenshot()
                    assert image.startswith(b"\x89PNG")
                return (perf_counter() - started) / size * 1e3

            yield run

    return opened


def _waiting(paused: bool) -> Callable[[int], AbstractContextManager[Run]]:
    """CPU time of desktops whose holders wait for a model, in percent of a core for each desktop."""

    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        def run() -> float:
            with _pool(size, 0) as pool:
                leases = [pool.allocate(timeout=_LIMIT) for _ in range(size)]
                if paused:
                    for lease in leases:
                        lease.pause()
                before = sum(_processor_seconds(int(lease.machine.details["pid"])) for lease in leases)
                sleep(_WATCHED_SECONDS)
                used = sum(_processor_seconds(int(lease.machine.details["pid"])) for lease in leases) - before
                return used / _WATCHED_SECONDS / size * 100

        yield run

    return opened


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _turns(size: int) -> Iterator[Run]:
    """Pause and resume, as a holder does in each turn of its model."""
    with _pool(1, 0) as pool:
        lease = pool.allocate(timeout=_LIMIT)

        def run() -> float:
            started = perf_counter()
            for _ in range(size):
                lease.pause()
                lease.resume()
            return (perf_counter() - started) / size * 1e3

        yield run
        lease.release()


@contextmanager
def _utilisation(size: int) -> Iterator[Run]:
    """Sample tasks on two desktops, three rollouts at a time: the fraction of the time in which the machines are leased."""

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            config = RolloutConfig(
                mode="osworld",
                data=sample_path("osworld"),
                limit=size,
                model="demo",
                observation_type="a11y_tree",
                num_rollouts=3,
                num_vms=2,
                use_vm_pool=True,
                provider_name="qemu",
                path_to_vm=Path("desktop"),
                output_dir=Path(folder),
            )
            summary = run_parallel_rollout(config)
            assert summary.done == size
            assert summary.machines is not None
            return summary.machines["utilisation"] * 100

    yield run


@contextmanager
def _memory(size: int) -> Iterator[Run]:
    """All desktops leased, with one key typed in each; shared pages are counted once."""
    with _pool(size, 0) as pool:

        def run() -> float:
            leases = [pool.allocate(timeout=_LIMIT) for _ in range(size)]
            for lease in leases:
                assert lease.machine.execute(["python", "-c", "import pyautogui; pyautogui.typewrite('x')"]).ok
            used = sum(proportional(int(lease.machine.details["pid"])) for lease in leases)
            for lease in leases:
                lease.release()
            return used / size

        yield run


MEASUREMENTS = (
    Measurement(
        name="desktop_reset",
        title="Reset of a desktop",
        question="QEMU desktops: how long from a release to the next lease's first screenshot?",
        unit="s",
        size=3,
        quick_size=1,
        contenders=(
            Contender(_OURS, _reset("qemu", 1), needs="qemu"),
            Contender(_BOOT, _reset("bench.qemu_resets:BootEach", 0), needs="qemu"),
        ),
        targets=(Target("at most", 1.2), Target("at most", 0.1, times=_BOOT)),
        warm_up=False,
        most_rounds=1,
    ),
    Measurement(
        name="desktop_utilisation",
        title="Leased time of desktops",
        question="What fraction of the time are two QEMU desktops leased, from the first to the last task?",
        unit="%",
        higher_is_better=True,
        size=6,
        quick_size=3,
        contenders=(Contender(_OURS, _utilisation, needs="qemu"),),
        warm_up=False,
        most_rounds=1,
    ),
    Measurement(
        name="desktop_screenshot",
        title="Screenshot of a desktop",
        question="How long does a screenshot of a QEMU desktop take?",
        unit="ms",
        size=10,
        quick_size=2,
        contenders=(
            Contender(_OURS, _screenshot(""), needs="qemu"),
            Contender(_IN_GUEST, _screenshot("/screenshot"), needs="qemu"),
        ),
        targets=(Target("at most", 100.0),),
        most_rounds=3,
    ),
    Measurement(
        name="desktop_waiting",
        title="CPU of a desktop that waits",
        question="How much CPU does a QEMU desktop use while the model is generating, in percent of a core?",
        unit="%",
        size=2,
        quick_size=1,
        contenders=(
            Contender("paused", _waiting(True), needs="qemu"),
            Contender(_RUNNING, _waiting(False), needs="qemu"),
        ),
        targets=(Target("at most", 1.0),),
        warm_up=False,
        most_rounds=1,
    ),
    Measurement(
        name="desktop_pause",
        title="Pause and resume of a desktop",
        question="How long does it take to pause and resume a QEMU desktop?",
        unit="ms",
        size=20,
        quick_size=2,
        contenders=(Contender(_OURS, _turns, needs="qemu"),),
        targets=(Target("at most", 20.0),),
        most_rounds=3,
    ),
    Measurement(
        name="desktop_memory",
        title="Memory of a desktop",
        question="How much memory does each of four concurrent QEMU desktops take?",
        unit="MB",
        size=4,
        quick_size=2,
        contenders=(Contender(_OURS, _memory, needs="qemu"),),
        targets=(Target("at most", 300.0),),
        warm_up=False,
        most_rounds=1,
    ),
)

"""The limits of cgroups are read from the files of the kernel, and decide how many cores are used."""

from __future__ import annotations

from pathlib import Path

import pytest

from paragent import config
from paragent._internal.cgroups import cgroup_limits
from paragent.config import RunConfig


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_limits_of_cgroups_of_version_2(tmp_path: Path) -> None:
    root, membership = tmp_path / "cgroup", tmp_path / "self"
    write(membership, "0::/outer/inner\n")
    assert cgroup_limits(root, membership) == (None, None)
    write(root / "outer/inner/cpu.max", "max 100000\n")
    write(root / "outer/cpu.max", "150000 100000\n")
    write(root / "outer/inner/memory.max", "2000000000\n")
    write(root / "memory.max", "max\n")
    assert cgroup_limits(root, membership) == (1.5, 2_000_000_000)


def test_the_limits_of_cgroups_of_version_1_in_a_container(tmp_path: Path) -> None:
    root, membership = tmp_path / "cgroup", tmp_path / "self"
    write(membership, "5:cpu,cpuacct:/docker/absent\n4:memory:/docker/absent\n1:name=systemd:/\n")
    write(root / "cpu/cpu.cfs_quota_us", "400000\n")
    write(root / "cpu/cpu.cfs_period_us", "100000\n")
    write(root / "memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert cgroup_limits(root, membership) == (4.0, None)
    assert cgroup_limits(root, tmp_path / "absent") == (None, None)


@pytest.mark.parametrize(("allowed", "workers"), [(None, 8), (2.0, 2), (1.5, 2), (0.2, 1), (64.0, 8)])
def test_there_are_as_many_workers_as_cores_that_a_container_may_use(
    monkeypatch: pytest.MonkeyPatch, allowed: float | None, workers: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(config, "cgroup_limits", lambda: (allowed, None))
    assert RunConfig().workers == workers

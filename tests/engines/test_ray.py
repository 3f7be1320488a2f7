"""The engine contract on Ray, and what is Ray's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import ray

from manyhands.testing import IsolationContract

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", autouse=True)
def users_ray() -> Iterator[None]:
    """A Ray of the user's own, which engines use and leave alone; so the suite starts it once."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    yield
    assert ray.is_initialized(), "an engine stopped a Ray that it had not started"
    ray.shutdown()


class TestRay(IsolationContract):
    settings = {"engine_name": "ray"}  # noqa: RUF012 - the suite's own annotation makes it a class variable

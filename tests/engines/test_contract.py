"""The engine contract on the inline and the local engine."""

from __future__ import annotations

import pytest

from paragent.testing import EngineContract, IsolationContract
from tests.engines.cluster_contract import ClusterContract


@pytest.mark.slow
class TestInline(EngineContract):
    settings = {"engine_name": "inline"}  # noqa: RUF012 - annotated as a class variable by the suite


@pytest.mark.slow
class TestLocal(IsolationContract):
    settings = {"engine_name": "local"}  # noqa: RUF012


def test_what_differs_on_clusters_is_in_the_contract() -> None:
    assert [name for name in ClusterContract.differs if not hasattr(ClusterContract, name)] == []
    assert ClusterContract.programs < ClusterContract.differs

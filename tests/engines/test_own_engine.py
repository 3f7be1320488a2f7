"""The engine of docs/howto/own_engine.md: the contract suite, and the three ways to select it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from paragent import RunConfig, Runners, UnknownName
from paragent.testing import IsolationContract, agents

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_engine.py"


@pytest.fixture(autouse=True)
def installed_engine(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package as pip does: a module, and metadata with an entry point."""
    site = tmp_path_factory.mktemp("site")
    (site / "own_engine.py").write_text(EXAMPLE.read_text())
    metadata = site / "own_engine-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-engine\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[paragent.engines]\npolite = own_engine:PoliteRuntime\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.delitem(sys.modules, "own_engine", raising=False)


@pytest.mark.slow
class TestOwnEngineByEntryPoint(IsolationContract):
    settings = {"engine_name": "polite"}  # noqa: RUF012 - annotated as a class variable by the suite
    differs = frozenset(
        {
            "test_responses_are_keyed_by_id_in_input_order",
            "test_responses_have_the_same_fields_as_on_the_local_engine",
            "test_agents_in_main_and_in_modules_next_to_the_script",
            "test_a_killed_worker_costs_one_execution",
            "test_close_is_idempotent",
            "test_ctrl_c_cancels_unfinished_tasks_lets_async_code_clean_up_and_leaves_no_process",
        }
    )
    """The engine is the local one with other workers, so `make test-nightly` checks the rest."""


def test_a_class_and_a_dotted_path_select_the_same_engine() -> None:
    import own_engine  # type: ignore[import-not-found]

    for cls in (own_engine.PoliteRuntime, "own_engine:PoliteRuntime", "own_engine.PoliteRuntime"):
        config = RunConfig(cls=cls, worker_num=1, engine_options={"niceness": 5})
        assert Runners.sync_run(None, own_engine.niceness_of, config).answer >= 5


def test_the_error_for_an_unknown_engine_lists_the_installed_one() -> None:
    with pytest.raises(UnknownName, match="polite"):
        Runners.sync_run(1, agents.echo, RunConfig(engine_name="polight"))


def test_the_documentation_contains_the_example() -> None:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "howto" / "own_engine.md").read_text(), re.DOTALL)
    assert EXAMPLE.read_text() in shown

"""The public names of the package, and the cost of importing them."""

from __future__ import annotations

import ast
import collections.abc
import functools
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import paragent
from paragent import errors, testing
from tests.architecture.trees import tree_of

HEAVY = {"asyncio", "cloudpickle", "grpc", "multiprocessing", "openai", "pyspark", "ray", "rich", "torch"}


def test_public_names_are_unique_and_exist() -> None:
    assert len(paragent.__all__) == len(set(paragent.__all__))
    for name in paragent.__all__:
        assert getattr(paragent, name) is not None
        assert name in dir(paragent)


def test_type_checkers_and_the_program_see_the_same_names() -> None:
    """The imports for type checkers, the table of modules and `__all__` of the package have the same names."""
    tree = tree_of(Path(paragent.__file__))
    [checked] = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {
        alias.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    [table] = [node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)]
    loaded = {name: f"paragent.{module}" for module, names in ast.literal_eval(table).items() for name in names}
    assert imported == loaded
    assert {*imported, *errors.__all__} == set(paragent.__all__)


@pytest.mark.parametrize("name", ["Environment", "Model", "Provider", "RuntimeEngine", "Scorer", "Tool"])
def test_extension_points_are_public(name: str) -> None:
    assert name in paragent.__all__


def annotations_of(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the annotations of the fields, public methods and constructor of a class and its bases in this package."""
    for base in kind.__mro__:
        if not base.__module__.startswith("paragent."):
            continue
        yield from ((name, str(text)) for name, text in vars(base).get("__annotations__", {}).items() if name[0] != "_")
        for name, member in vars(base).items():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if inspect.isfunction(function) and (name[0] != "_" or name == "__init__"):
                annotations = ((parameter, str(text)) for parameter, text in function.__annotations__.items())
                # Callers write the keyword arguments that `Unpack` lists, and not the name of the list.
                yield from ((f"{name}({one})", text) for one, text in annotations if not text.startswith("Unpack["))


@functools.cache
def top_level_classes() -> set[str]:
    trees = (tree_of(path) for path in Path(paragent.__file__).parent.rglob("*.py"))
    return {node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


@pytest.mark.parametrize(
    "name", ["AgentBase", "ChatAgent", "Environment", "Machine", "Model", "PoolStatus", "Provider", "RolloutConfig"]
)
def test_classes_in_signatures_of_extension_points_are_public(name: str) -> None:
    """Who writes an environment, an agent, a model or a provider imports everything from `paragent`."""
    hidden = top_level_classes() - set(paragent.__all__) - set(dir(collections.abc))
    found = {where: hidden & set(re.findall(r"\w+", text)) for where, text in annotations_of(getattr(paragent, name))}
    assert not {where: names for where, names in found.items() if names}


@pytest.mark.parametrize("kind", ["Engine", "Environment", "Model", "Provider", "Scorer"])
def test_every_contract_has_a_public_suite(kind: str) -> None:
    assert f"{kind}Contract" in testing.__all__
    assert getattr(testing, f"{kind}Contract") is not None


def test_the_version_is_that_of_the_package() -> None:
    assert paragent.__version__ == metadata.version("paragent")


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Runner"):
        _ = paragent.Runner


def modules_after(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=100
        ).stdout.split()
    )


def test_importing_paragent_loads_nothing_heavy() -> None:
    loaded = modules_after("import paragent")
    assert not loaded & HEAVY, loaded & HEAVY


def test_the_records_of_tasks_do_not_load_engines() -> None:
    loaded = modules_after("from paragent import Task, RunConfig, EngineName, TaskResponse, AgentBase, Msg")
    assert not loaded & (HEAVY - {"asyncio"}), loaded & HEAVY


def test_a_worker_loads_no_dataclasses_before_it_is_ready() -> None:
    loaded = modules_after("import paragent.worker.main")
    unneeded = {"asyncio", "dataclasses", "inspect", "json", "pathlib", "socket"}
    assert not loaded & unneeded, loaded & unneeded


def test_importing_paragent_is_quick() -> None:
    """Measured as CPU time, the best of five, so that the load of the machine does not matter."""
    code = "import time; t = time.process_time(); import paragent; print(time.process_time() - t)"
    best = min(
        float(
            subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=100).stdout
        )
        for _ in range(5)
    )
    assert best < 0.1, best

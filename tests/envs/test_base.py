"""The base class of environments: tools, options, time limits, and shared resources."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from paragent._installation import install_command
from paragent.envs import ENVIRONMENTS, Environment, SharedResources, ToolFailed, ToolResult, environment_class, tool
from paragent.envs.tools import Arguments
from paragent.errors import ConfigError, EnvironmentFailed, MissingExtra, UnknownName


@dataclass(frozen=True)
class Options:
    depth: int = 1
    kind: Literal["a", "b"] = "a"
    loud: bool = False


class Sample(Environment):
    name = "sample"
    options_type = Options
    call_limit = 0.2

    @tool
    async def add(
        self, first: Annotated[int, "one"], second: Annotated[float, "another"] = 2.0, note: str | None = None
    ) -> str:
        """Add two numbers."""
        return str(first + second)

    @tool(name="list")
    async def listing(self, names: Annotated[list[str], "them"], how: Literal["up", "down"] = "up") -> ToolResult:
        """List names."""
        return ToolResult(",".join(names), extras={"how": how})

    @tool
    async def fail(self) -> str:
        """Fail."""
        raise ToolFailed("reported")

    @tool
    async def hang(self) -> str:
        """Hang."""
        await asyncio.sleep(60)
        return ""

    @tool
    async def bug(self) -> str:
        """Break."""
        raise KeyError("bug")


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def call(name: str, arguments: Any) -> ToolResult:
    result: ToolResult = run(Sample().call(name, arguments))
    return result


def test_schemas_are_derived_from_annotations() -> None:
    add, listing, *_ = Sample().tools()
    assert add.as_openai() == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "first": {"type": "integer", "description": "one"},
                    "second": {"type": "number", "description": "another", "default": 2.0},
                    "note": {"type": "string"},
                },
                "required": ["first"],
                "additionalProperties": False,
            },
        },
    }
    assert listing.name == "list"
    assert listing.parameters["properties"]["names"]["items"] == {"type": "string"}
    assert listing.parameters["properties"]["how"]["enum"] == ["up", "down"]


def test_arguments_are_converted_or_rejected() -> None:
    assert call("add", '{"first": 1}').text == "3.0"
    assert call("add", {"first": "4", "second": "1"}).text == "5.0"
    assert call("add", {"first": 2.0, "note": None}).text == "4.0"
    assert call("list", {"names": ["a"], "how": "down"}) == ToolResult("a", extras={"how": "down"})
    for bad in (
        '{"first": "x"}',
        '{"first": 1.5}',
        '{"first": true}',
        '{"first": null}',
        '{"first": 1, "third": 2}',
        "",
        "null",
    ):
        assert call("add", bad).error, bad
    assert "'up' or 'down'" in call("list", {"names": [], "how": "left"}).text


def test_tool_failures_are_results_and_other_exceptions_are_raised() -> None:
    assert call("fail", {}) == ToolResult("reported", error=True)
    assert "longer than 0.2 s" in call("hang", {}).text
    with pytest.raises(KeyError, match="bug"):
        call("bug", {})


def test_options_are_converted_or_rejected() -> None:
    assert Sample({"depth": "3", "loud": "true", "kind": None}).options == Options(3, "a", True)
    for bad in ({"depth": "x"}, {"depth": "5.0"}, {"kind": "c"}, {"loud": 3}, {"loud": "yes"}, {"size": 1}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            Sample(bad)


@pytest.mark.parametrize("value", [1, None])
def test_unknown_options_are_rejected_whatever_their_value(value: Any) -> None:
    with pytest.raises(ConfigError, match="'dept' is unknown; known are: depth, kind, loud"):
        Sample({"dept": value})


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "1e999", [1], {}, True])
def test_invalid_integers_are_rejected(value: Any) -> None:
    with pytest.raises(ValueError, match="'number' must be a"):
        Arguments("sample", {"number": (int, ...)}).validate({"number": value})


def test_large_integers_are_accepted() -> None:
    assert Arguments("sample", {"number": (int, ...)}).validate({"number": 10**400}) == {"number": 10**400}


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int, "5", 5),
        (int, " -5 ", -5),
        (int, 5.0, 5),
        (Annotated[int, Field(ge=1)], "5", 5),
        (float, 1, 1.0),
        (float, "1.5", 1.5),
        (bool, "True", True),
        (bool, " false ", False),
        (str, "5", "5"),
        (Path, "a/b", Path("a/b")),
        (Any, b"x", b"x"),
        (int | None, "5", 5),
        (int | None, None, None),
        (int | str, "5", "5"),
        (bool | str, "true", "true"),
        (list[int] | None, ["5"], [5]),
        (list[int], (1, 2), [1, 2]),
        (dict[str, float], {"a": "1"}, {"a": 1.0}),
        (tuple[int, ...], ["1", 2], (1, 2)),
        (Sequence[bool], ["true"], [True]),
    ],
)
def test_texts_are_converted_to_numbers_and_booleans(annotation: Any, value: Any, expected: Any) -> None:
    [found] = Arguments("sample", {"value": (annotation, ...)}).validate({"value": value}).values()
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (int, True, "value"),
        (int, "5.0", "value"),
        (int, "", "value"),
        (int, b"5", "value"),
        (Annotated[int, Field(ge=1)], "0", "value"),
        (float, False, "value"),
        (float, "inf", "value"),
        (float, b"1", "value"),
        (bool, 1, "value"),
        (bool, 0.0, "value"),
        (bool, "yes", "value"),
        (bool, "1", "value"),
        (str, b"text", "value"),
        (str, 5, "value"),
        (str | None, b"text", "value"),
        (int | list[str], True, "value"),
        (int | list[str], {}, "value"),
        (list[int], [1, True], "value.1"),
        (list[str], [b"text"], "value.0"),
        (list[int | None], ["5.0"], "value.0"),
        (dict[str, list[bool]], {"a": [1]}, "value.a.0"),
        (dict[str, int] | None, {"a": True}, "value.a"),
        (tuple[int, str], [True, "a"], "value.0"),
    ],
)
def test_other_conversions_are_rejected_at_any_depth(annotation: Any, value: Any, path: str) -> None:
    with pytest.raises(ValueError, match=f"^'{re.escape(path)}' must be "):
        Arguments("sample", {"value": (annotation, ...)}).validate({"value": value})


class Point(BaseModel):
    x: int
    y: int = 0
    label: str | None = None


class Drawing(Environment):
    @tool
    async def draw(
        self,
        size: Annotated[int | None, "in pixels"] = None,
        where: Point | None = None,
        names: list[str | None] | None = None,
        either: int | list[str] | None = None,
        title: str | None = "none",
        on: bool = False,
    ) -> str:
        """Draw."""
        return f"{size} {where} {names} {either} {title} {on}"


def test_schemas_have_neither_null_nor_titles() -> None:
    [draw] = Drawing().tools()
    assert draw.parameters == {
        "type": "object",
        "properties": {
            "size": {"type": "integer", "description": "in pixels"},
            "where": {"$ref": "#/$defs/Point"},
            "names": {"type": "array", "items": {"type": "string"}},
            "either": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}]},
            "title": {"type": "string", "default": "none"},
            "on": {"type": "boolean", "default": False},
        },
        "required": [],
        "additionalProperties": False,
        "$defs": {
            "Point": {
                "type": "object",
                "properties": {
                    "x": {"type": "integer"},
                    "y": {"type": "integer", "default": 0},
                    "label": {"type": "string"},
                },
                "required": ["x"],
            }
        },
    }
    result = run(Drawing().call("draw", {"size": None, "where": None, "names": [None]}))
    assert result.text == "None None [None] None none False", "null is still accepted"


class Unbound(Environment):
    @tool
    @staticmethod
    async def outer_static(first: int, second: str = "b") -> str:
        """Tool applied to the static method."""
        return f"{first} {second}"

    @staticmethod
    @tool
    async def inner_static(first: int, second: str = "b") -> str:
        """Tool applied to the function."""
        return f"{first} {second}"

    @tool
    @classmethod
    async def outer_class(cls, first: int, second: str = "b") -> str:
        """Tool applied to the class method."""
        return f"{first} {second} {cls.__name__}"

    @classmethod
    @tool(name="renamed")
    async def inner_class(cls, first: int, second: str = "b") -> str:
        """Tool applied to the function."""
        return f"{first} {second} {cls.__name__}"


def test_static_and_class_methods_can_be_tools() -> None:
    tools = Unbound().tools()
    assert [one.name for one in tools] == ["outer_static", "inner_static", "outer_class", "renamed"]
    for one in tools:
        assert list(one.parameters["properties"]) == ["first", "second"]
        assert one.parameters["required"] == ["first"]
        assert one.description.startswith("Tool applied")
    texts = [run(Unbound().call(one.name, {"first": 1, "second": "c"})).text for one in tools]
    assert texts == ["1 c", "1 c", "1 c Unbound", "1 c Unbound"]


def test_nested_unions_and_literals_have_correct_schemas() -> None:
    arguments = Arguments(
        "sample",
        {
            "points": (Annotated[list[Point], "where"], ...),
            "level": (Literal[1, 2], 1),
            "either": (int | list[str], 0),
            "json": (dict[str, float], ...),
        },
    )
    schema = arguments.json_schema
    assert schema["properties"]["points"]["description"] == "where"
    assert schema["properties"]["points"]["items"] == {"$ref": "#/$defs/Point"}
    assert schema["properties"]["level"] == {"type": "integer", "enum": [1, 2], "default": 1}
    assert {one["type"] for one in schema["properties"]["either"]["anyOf"]} == {"integer", "array"}
    assert schema["required"] == ["points", "json"]
    assert "title" not in schema
    values = arguments.validate({"points": [{"x": 1}], "json": {"a": 1}})
    assert values == {"points": [Point(x=1)], "json": {"a": 1.0}}
    with pytest.raises(ValueError, match=r"points\.0\.x"):
        arguments.validate({"points": [{"x": "a"}], "json": {}})


@pytest.mark.parametrize("name", ENVIRONMENTS.names())
def test_environments_keep_the_parameter_names_of_the_base_class(name: str) -> None:
    for method in ("open", "score", "missing_requirements"):
        own, base = (inspect.signature(getattr(kind, method)) for kind in (environment_class(name), Environment))
        assert list(own.parameters) == list(base.parameters), method


def test_unknown_names_and_missing_extras_are_different_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(ENVIRONMENTS.names()) >= {"math", "py", "rag", "web"}
    with pytest.raises(UnknownName, match="math, openenv, osworld, py"):
        environment_class("maths")
    with pytest.raises(ConfigError, match="not an environment"):
        environment_class("paragent.tasks:BenchmarkTask")
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    monkeypatch.delitem(__import__("sys").modules, "paragent.envs.web.environment", raising=False)
    with pytest.raises(MissingExtra, match=re.escape(install_command(["web"]))):
        environment_class("web")


# --- what a worker shares ----------------------------------------------------------------------------------------------


class Things:
    """Counts openings and closings; the first `failures` openings fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.opened, self.closed = failures, 0, list[int]()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[list[int]]:
        await asyncio.sleep(0.01)
        self.opened += 1
        number = self.opened
        if number <= self.failures:
            raise OSError("not yet")
        yield [number]
        self.closed.append(number)


def test_a_resource_is_opened_once_and_closed_at_the_end() -> None:
    async def scenario() -> Things:
        things = Things()
        async with SharedResources() as shared:
            found = await asyncio.gather(*(shared.get("k", things.running) for _ in range(10)))
            assert all(one is found[0] for one in found)
            assert things.closed == []
        with pytest.raises(EnvironmentFailed):
            await shared.get("k", things.running)
        return things

    things = run(scenario())
    assert (things.opened, things.closed) == (1, [1])


def test_cancelling_one_waiter_does_not_cancel_the_opening() -> None:
    async def scenario() -> Any:
        things = Things()
        async with SharedResources() as shared:
            first = asyncio.create_task(shared.get("k", things.running))
            second = asyncio.create_task(shared.get("k", things.running))
            await asyncio.sleep(0)
            first.cancel()
            return await second

    assert run(scenario()) == [1]


def test_a_failed_opening_is_retried_and_a_broken_resource_replaced_once() -> None:
    async def scenario() -> Things:
        things = Things(failures=1)
        async with SharedResources() as shared:
            with pytest.raises(OSError, match="not yet"):
                await shared.get("k", things.running)
            broken = await shared.get("k", things.running)
            await asyncio.gather(*(shared.drop("k", broken) for _ in range(3)))
            await shared.get("k", things.running)
            await shared.drop("k", broken)
        return things

    things = run(scenario())
    assert (things.opened, things.closed) == (3, [2, 3])

"""Tools: typed async methods that an agent can call. Their JSON schemas and the checks of arguments come from pydantic."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    LiteralString,
    NoReturn,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from paragent._internal.text import read_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pydantic import BaseModel

__all__ = [
    "Arguments",
    "SchemaArguments",
    "Tool",
    "ToolFailed",
    "ToolResult",
    "ToolSource",
    "call_tool",
    "option_arguments",
    "tool",
    "tools_of",
]

Method = TypeVar("Method", bound="Callable[..., Awaitable[Any]]")
_LONGEST_VALUE = 200
"""Characters of a rejected value that the error message shows."""


class ToolFailed(Exception):
    """Raised by a tool to report a failure to the agent. `Environment.call` turns it into a result with `error` set."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call."""

    text: str
    """Shown to the agent."""
    error: bool = False
    """Whether the call failed. `text` then says why, and what would work."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Additional facts for the trajectory, not for the agent; JSON only."""
    images: tuple[bytes, ...] = ()
    """Images for the agent: PNG, JPEG, GIF or WebP."""
    kept: tuple[bytes, ...] = ()
    """Images for the trajectory, not for the agent."""
    ends: str = ""
    """If this call ended the attempt: how, in a word or two. The agent is not asked again."""


class Arguments:
    """The named arguments of a tool, or the options of an environment: their JSON schema and their validation.

    Annotations may be everything that pydantic supports. Text in `Annotated[T, "text"]` is the description. Models and
    shells write numbers and booleans as text, so "5" is accepted as a number, and "true" and "false" as booleans. Other
    conversions between texts, numbers and booleans are rejected, also within unions and collections. Fields of pydantic
    models and dataclasses follow the configuration of their class.

    Args:
        title: the name of the tool or environment.
        fields: annotation and default by name; the default `...` marks a required argument.
    """

    def __init__(self, title: str, fields: Mapping[str, tuple[Any, Any]]) -> None:
        from pydantic import ConfigDict, Field, create_model  # importing pydantic takes 65 ms

        self.names = list(fields)
        definitions: dict[str, Any] = {  # aliases, because pydantic reserves names such as `json` and `copy`
            f"argument_{number}": (_restricted(annotation), Field(default, alias=name))
            for number, (name, (annotation, default)) in enumerate(fields.items())
        }
        self._attributes = dict(zip(fields, definitions, strict=True))
        config = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
        self._model: type[BaseModel] = create_model(title, __config__=config, **definitions)

    @functools.cached_property
    def json_schema(self) -> dict[str, Any]:
        """A JSON schema of type `object`."""
        schema = self._model.model_json_schema(schema_generator=_schema_generator())
        return {"type": "object", "properties": {}, "required": [], **schema}

    def validate(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given values, converted to the annotated types.

        Raises:
            ValueError: a value is missing, unknown or has the wrong type. The message says which and what is expected.
        """
        from pydantic import ValidationError

        try:
            model = self._model.model_validate(given)
        except ValidationError as error:
            raise ValueError(self._problem(error, given)) from None
        return {name: getattr(model, self._attributes[name]) for name in given}

    def _problem(self, error: Any, given: Mapping[str, Any]) -> str:
        first = error.errors(include_url=False)[0]
        name = ".".join(_path(first["loc"], given))
        if first["type"] == "missing":
            return f"{'.'.join([*_path(first['loc'][:-1], given), first['loc'][-1]])!r} is required"
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            return f"{name!r} is unknown; known are: {', '.join(self.names) or 'none'}"
        return f"{name!r} {first['msg'].replace('Input should', 'must')}, not {first['input']!r:.{_LONGEST_VALUE}}"


def _path(location: tuple[str | int, ...], given: Any) -> list[str]:
    """Return the location of a pydantic error within `given`, without the parts that name a branch of a union."""
    path, value = [], given
    for part in location:
        if part in value if isinstance(value, Mapping) else isinstance(part, int) and isinstance(value, list | tuple):
            path.append(str(part))
            value = value[part]
    return path


@functools.cache
def _schema_generator() -> Any:
    from pydantic.json_schema import GenerateJsonSchema

    class PlainSchema(GenerateJsonSchema):
        """Leaves out what only costs tokens or confuses models: titles, which repeat names, and null as a type or default."""

        def generate(self, schema: Any, mode: Any = "validation") -> dict[str, Any]:
            generated = super().generate(schema, mode)
            for one in (generated, *generated.get("$defs", {}).values()):
                one.pop("title", None)
            return generated

        def field_title_should_be_set(self, _: Any) -> bool:
            return False

        def nullable_schema(self, schema: Any) -> dict[str, Any]:
            return self.generate_inner(schema["schema"])

        def default_schema(self, schema: Any) -> dict[str, Any]:
            generated = super().default_schema(schema)
            return {key: value for key, value in generated.items() if key != "default" or value is not None}

    return PlainSchema


def _restricted(annotation: Any) -> Any:
    """Restrict the conversions that pydantic makes for an annotation; see `Arguments`. Texts become descriptions."""
    from pydantic import BeforeValidator, Field, Strict

    base, *metadata = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    metadata = [Field(description=one) if isinstance(one, str) else one for one in metadata]
    origin, args = get_origin(base), get_args(base)
    if base is str:
        metadata.append(Strict())
    elif base in (bool, int, float):
        metadata.append(BeforeValidator({bool: _boolean, int: _integer, float: _number}[base]))
    elif origin in (Union, UnionType):
        base = Union[tuple(map(_restricted, args))]  # noqa: UP007 - the members are only known at run time
    elif args and isinstance(origin, type) and issubclass(origin, Collection):
        base = origin[tuple(map(_restricted, args))]  # type: ignore[index]
    return Annotated[(base, *metadata)] if metadata else base


def _boolean(value: Any) -> Any:
    word = value.strip().lower() if isinstance(value, str) else None
    if word in ("true", "false"):
        return word
    return value if isinstance(value, bool) else _reject("true or false")


def _integer(value: Any) -> Any:
    number = isinstance(value, int | float | str) and not isinstance(value, bool)
    return value if number and not (isinstance(value, str) and "." in value) else _reject("an integer")


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else _reject("a number")


def _reject(expected: LiteralString) -> NoReturn:
    from pydantic_core import PydanticCustomError

    raise PydanticCustomError("wrong_type", f"Input should be {expected}")


class SchemaArguments:
    """The named arguments of a tool of another program, which sent their JSON schema and validates them itself."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.json_schema = {"type": "object", "properties": {}, **schema}

    def validate(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given values as they are."""
        return dict(given)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its description for the agent, and how to call it."""

    name: str
    """The name that the model uses."""
    description: str
    """What the model is told about it."""
    arguments: Arguments | SchemaArguments
    """The arguments, which are checked before each call."""
    function: Callable[..., Awaitable[str | ToolResult]]
    """The function that is called."""

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return self.arguments.json_schema

    def as_openai(self) -> dict[str, Any]:
        """Return the entry of the `tools` list of a chat completion request."""
        described = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": described}

    def bind(self, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
        """Return the arguments with which to call `function`. A text is parsed as JSON; an empty text means no arguments.

        Raises:
            ToolFailed: the text is not a JSON object, or an argument is missing, unknown or of the wrong type.
        """
        try:
            return self.arguments.validate(_parse(arguments))
        except ValueError as error:
            raise ToolFailed(f"{self.name}: the argument {error}") from None


class ToolSource(Protocol):
    """Tools for an agent: those of an environment, or those of MCP servers."""

    def tools(self) -> Sequence[Tool]:
        """Return the tools that the agent may call."""

    async def call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolResult:
        """Run a tool; see `Environment.call`."""


async def call_tool(tool: Tool, arguments: Mapping[str, Any] | str, limit: float) -> ToolResult:
    """Run a tool with arguments as a model sent them, at most for `limit` seconds.

    Invalid arguments, a call over its time limit and `ToolFailed` are results with `error` set.
    """
    timeout = asyncio.timeout(limit)
    try:
        bound = tool.bind(arguments)
        async with timeout:
            result = await tool.function(**bound)
    except ToolFailed as error:
        return ToolResult(str(error), error=True)
    except TimeoutError:
        if not timeout.expired():
            raise
        return ToolResult(f"{tool.name} was stopped: it took longer than {limit:g} s", error=True)
    return result if isinstance(result, ToolResult) else ToolResult(result)


@overload
def tool(method: Method) -> Method: ...
@overload
def tool(*, name: str) -> Callable[[Method], Method]: ...
def tool(method: Any = None, *, name: str | None = None) -> Any:
    """Mark an async method of an environment as a tool.

    The tool has the method's name unless `name` is given. The docstring is its description, and each parameter is
    annotated as `Annotated[type, "description"]`. The method returns a text or a `ToolResult`. It raises `ToolFailed` to
    report a failure to the agent; any other exception ends the rollout.
    """
    if method is None:
        return lambda decorated: _mark(decorated, name)
    return _mark(method, method.__name__)


def _mark(method: Any, name: str | None) -> Any:
    _function_of(method).__paragent_tool__ = name
    return method


def _function_of(attribute: Any) -> Any:
    """Return the function in a static method or class method; another attribute as it is."""
    return attribute.__func__ if isinstance(attribute, staticmethod | classmethod) else attribute


def tools_of(owner: Any) -> dict[str, Tool]:
    """Return the tools of an object by name, in the order of definition, tools of base classes first."""
    kind: Any = type(owner)
    described = _described_tools(kind).items()
    return {
        name: Tool(name, inspect.getdoc(function) or "", arguments, getattr(owner, attribute))
        for name, (attribute, function, arguments) in described
    }


@functools.cache
def _described_tools(kind: type) -> dict[str, tuple[str, Any, Arguments]]:
    """Return attribute, function and arguments by tool. Cached by class: pydantic takes milliseconds for each tool."""
    attributes: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        marked = {
            attribute: getattr(_function_of(one), "__paragent_tool__", None) for attribute, one in vars(base).items()
        }
        attributes.update({name: attribute for attribute, name in marked.items() if name is not None})
    return {
        name: (attribute, getattr(kind, attribute), _arguments_of(name, inspect.getattr_static(kind, attribute)))
        for name, attribute in attributes.items()
    }


def _arguments_of(name: str, method: Any) -> Arguments:
    function = _function_of(method)
    annotations = get_type_hints(function, include_extras=True)
    first = 0 if isinstance(method, staticmethod) else 1  # without `self` or `cls`
    parameters = list(inspect.signature(function).parameters.values())[first:]
    missing = inspect.Parameter.empty
    return Arguments(
        name, {one.name: (annotations[one.name], ... if one.default is missing else one.default) for one in parameters}
    )


@functools.cache
def option_arguments(options_type: Any) -> Arguments:
    """Return the fields of a dataclass as arguments."""
    annotations = get_type_hints(options_type, include_extras=True)
    required = {one.name: one.default is MISSING and one.default_factory is MISSING for one in fields(options_type)}
    return Arguments(
        options_type.__name__, {name: (annotations[name], ... if needed else None) for name, needed in required.items()}
    )


def _parse(arguments: Mapping[str, Any] | str) -> Mapping[str, Any]:
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = read_json(arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise ToolFailed(f"the arguments are not valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ToolFailed("the arguments must be one JSON object")
    return parsed

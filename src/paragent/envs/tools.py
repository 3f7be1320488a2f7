"""Tools: typed async methods that an agent can call, told as JSON schemas."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints, overload

from paragent._internal.text import read_json
from paragent.envs.schema import convert, schema

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

__all__ = ["Tool", "ToolFailed", "ToolResult", "tool", "tools_of"]


Method = TypeVar("Method", bound="Callable[..., Awaitable[Any]]")


class ToolFailed(Exception):
    """What a tool raises to tell the agent that, and why, the call did nothing useful; it never leaves `call`."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool call gave."""

    text: str
    """For the agent."""
    error: bool = False
    """Whether the call failed; `text` then says why, and what would work."""
    extras: dict[str, Any] = field(default_factory=dict)
    """For the trajectory, JSON only: facts that the agent is not shown."""
    images: tuple[bytes, ...] = ()
    """Pictures for the agent, as PNG."""
    kept: tuple[bytes, ...] = ()
    """Pictures for the trajectory that the agent is not shown."""
    ends: str = ""
    """How the attempt ended, in a word or two, if this call ended it; the agent is not asked again."""


@dataclass(frozen=True, slots=True)
class Tool:
    """What an agent is told about a tool, and how to call it."""

    name: str
    description: str
    parameters: dict[str, Any]
    """A JSON schema of type `object`."""
    function: Callable[..., Awaitable[str | ToolResult]]
    annotations: Mapping[str, Any]

    def as_openai(self) -> dict[str, Any]:
        """Return the entry of the `tools` list of a chat completion request."""
        described = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": described}

    def bind(self, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
        """Return the arguments as the function takes them; a text is read as JSON, an empty one as no arguments.

        Raises:
            ToolFailed: they are no JSON object, one is missing, unknown or of the wrong type.
        """
        given = _parse(arguments)
        known = self.parameters["properties"]
        if unknown := [name for name in given if name not in known]:
            raise ToolFailed(f"{self.name} has no argument {unknown[0]!r}; it has: {', '.join(known) or 'none'}")
        if missing := [name for name in self.parameters["required"] if name not in given]:
            raise ToolFailed(f"{self.name} needs the argument {missing[0]!r}")
        bound = {}
        for name, value in given.items():
            try:
                bound[name] = convert(value, self.annotations[name])
            except ValueError as error:
                raise ToolFailed(f"the argument {name!r} of {self.name} {error}") from None
        return bound


@overload
def tool(method: Method) -> Method: ...
@overload
def tool(*, name: str) -> Callable[[Method], Method]: ...
def tool(method: Any = None, *, name: str | None = None) -> Any:
    """Mark an async method of an environment as a tool.

    Its name is the tool's name unless another one is given, its docstring the description, and each parameter is written
    `Annotated[type, "what it means"]`. It returns a text or a `ToolResult` and raises `ToolFailed` for what the agent
    should hear; anything else that it raises ends the rollout.
    """
    if method is None:
        return lambda decorated: _mark(decorated, name)
    return _mark(method, method.__name__)


def _mark(method: Any, name: str | None) -> Any:
    method.__paragent_tool__ = name
    return method


def tools_of(owner: Any) -> dict[str, Tool]:
    """Return the tools of an object by name, in the order of their definition, those of base classes first."""
    methods: dict[str, str] = {}
    for kind in reversed(type(owner).__mro__):
        marked = {method: getattr(one, "__paragent_tool__", None) for method, one in vars(kind).items()}
        methods.update({name: method for method, name in marked.items() if name is not None})
    return {name: _describe(name, getattr(owner, method)) for name, method in methods.items()}


def _describe(name: str, method: Any) -> Tool:
    annotations = get_type_hints(method, include_extras=True)
    parameters = inspect.signature(method).parameters
    properties = {parameter: schema(annotations[parameter]) for parameter in parameters}
    required = [parameter for parameter, one in parameters.items() if one.default is inspect.Parameter.empty]
    for parameter, one in parameters.items():
        if parameter not in required and one.default is not None:
            properties[parameter]["default"] = one.default
    return Tool(
        name=name,
        description=inspect.getdoc(method) or "",
        parameters={
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
        function=method,
        annotations=annotations,
    )


def _parse(arguments: Mapping[str, Any] | str) -> Mapping[str, Any]:
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = read_json(arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise ToolFailed(f"the arguments are no valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ToolFailed("the arguments must be one JSON object")
    return parsed

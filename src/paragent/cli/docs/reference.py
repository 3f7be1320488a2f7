"""The Python reference: Markdown from the source code of public names. The site has the same, made by mkdocstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["expand_reference"]

_DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)
_SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Attributes|Examples?|Notes?):$")
_WIDTH = 80
"""Characters of a signature that fit beside the list of pages."""
_ENTRY = re.compile(r"^    (\*{0,2}\w[\w., *]*): (.*)$")


def expand_reference(text: str) -> str:
    """Return the Markdown of a page in which each line `::: name` is the description of this name."""
    return _DIRECTIVE.sub(lambda line: _describe(line[1]), text)


def _describe(dotted: str) -> str:
    module, _, name = dotted.rpartition(".")
    thing = getattr(importlib.import_module(module), name)
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return f"## `{name}`\n\n{_markdown(_value_doc(module, name))}"
    lines = [f"## {name}", ""]
    [node] = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    if isinstance(node, ast.ClassDef) and isinstance(thing, type):
        lines += _class(node, thing)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        lines += _function(node, thing, name)
    return "\n".join(lines)


def _value_doc(module: str, name: str) -> str:
    """Return the docstring below the assignment of a value: the value itself has only that of its class."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == name for alias in node.names):
            return _value_doc(node.module, name)
    return next((doc for target, _, doc in _assignments(tree) if target == name), "")


def _class(node: ast.ClassDef, cls: type) -> Iterator[str]:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    start = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    yield from ("```python", f"class {node.name}({bases})" if bases else f"class {node.name}")
    if start is not None:
        yield _signature(node.name, start, "")
    yield from ("```", "", _markdown(inspect.getdoc(cls) or ""), "")
    for name, kind, doc in _assignments(node):
        if not name.startswith("_"):
            yield f"- `{name}`{f' (`{kind}`)' if kind else ''}{f': {doc}' if doc else ''}"
    yield ""
    for member in node.body:
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and _is_shown(member):
            yield from (f"### {node.name}.{member.name}", "")
            yield from _function(member, inspect.getattr_static(cls, member.name), member.name)


def _is_shown(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a method is public. Overloads and setters only repeat one that is shown."""
    decorators = [ast.unparse(one) for one in node.decorator_list]
    repeated = any(one.endswith(("overload", ".setter")) for one in decorators)
    return not repeated and not node.name.startswith(("_", "test_"))


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, function: Any, name: str) -> Iterator[str]:
    start = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    decorators = [ast.unparse(one) for one in node.decorator_list]
    is_property = any(one.split(".")[-1] in {"property", "cached_property"} for one in decorators)
    signature = f"{name}{result.replace(' ->', ':')}" if is_property else _signature(f"{start}{name}", node, result)
    yield from ("```python", signature, "```", "", _markdown(inspect.getdoc(function) or ""), "")


def _signature(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef, result: str) -> str:
    """Return a call of a function with its arguments, each in a line of its own if one line is too short."""
    call = f"{name}({re.sub(r'^(self|cls)(, )?', '', ast.unparse(node.args))}){result}"
    if len(call) <= _WIDTH:
        return call
    arguments = "".join(f"    {one},\n" for one in _arguments(node.args) if one not in {"self", "cls"})
    return f"{name}(\n{arguments}){result}"


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    """Yield the arguments as they are written, with `/` and `*` where they stand."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for number, (argument, default) in enumerate(zip(positional, defaults, strict=True), start=1):
        yield _argument(argument, default)
        if number == len(arguments.posonlyargs):
            yield "/"
    if arguments.vararg:
        yield f"*{ast.unparse(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _argument(argument, default)
    if arguments.kwarg:
        yield f"**{ast.unparse(arguments.kwarg)}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    equals = " = " if argument.annotation else "="
    return ast.unparse(argument) + (f"{equals}{ast.unparse(default)}" if default else "")


def _assignments(node: ast.ClassDef | ast.Module) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and documentation of the names that a class body or a module assigns."""
    for member, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(member, ast.AnnAssign):
            target: ast.expr = member.target
            kind = ast.unparse(member.annotation)
        elif isinstance(member, ast.Assign):
            target, kind = member.targets[0], ""
        else:
            continue
        doc = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        if isinstance(target, ast.Name):
            yield target.id, kind, " ".join(str(doc).split())


def _markdown(docstring: str) -> str:
    """Return Markdown for a docstring in Google's style: its sections become lists."""
    lines: list[str] = []
    in_section = False
    for line in docstring.splitlines():
        if section := _SECTION.match(line):
            in_section = True
            lines += ["", f"**{section[1]}**", ""]
        elif in_section and (entry := _ENTRY.match(line)):
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        elif in_section and line.startswith("    "):
            lines.append(line[4:] if lines and not lines[-1].startswith(("-", "  ")) else f"  {line.strip()}")
        else:
            in_section = in_section and not line
            lines.append(line)
    return "\n".join(lines)

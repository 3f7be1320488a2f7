"""The model `demo`: a scripted policy that answers the sample tasks with tool calls. It is not an LLM.

It makes it possible to try everything around a model without an API key. It knows some forms of questions; to any other
question it answers that it does not know.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from paragent.demo.desktop_policy import act_on_desktop
from paragent.models.base import Completion, Model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["UNKNOWN", "DemoModel"]

_PROGRAMS = {
    "running_maximum": """    return [max(numbers[: end + 1]) for end in range(len(numbers))]
""",
    "is_anagram": """    return sorted(first.lower()) == sorted(second.lower())
""",
    "collatz_steps": """    steps = 0
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        steps += 1
    return steps
""",
}
"""Function bodies, by the name of the function."""
_RESULTS = {
    "prime numbers are there below 1000": "print(sum(all(n % d for d in range(2, n)) for n in range(2, 1000)))",
    "digits of 2 to the power of 1000": "print(sum(map(int, str(2**1000))))",
    "most often in the word 'Mississippi'": "word = 'mississippi'\nprint(max(word, key=word.count))",
}
"""Programs that print the answer, by a phrase of the question."""

UNKNOWN = "I am a scripted policy and do not know this kind of question."
"""The answer to every other question."""
_EXPRESSIONS = (
    (r"sum of the whole numbers from (\d+) to (\d+)", r"summation(k, (k, \1, \2))"),
    (r"greatest common divisor of (\d+) and (\d+)", r"gcd(\1, \2)"),
    (r"area under y = (.+?) from x = (\S+) to x = (\w+)", r"integrate(\1, (x, \2, \3))"),
    (r"how many ways can (\d+) of (\d+)", r"binomial(\2, \1)"),
    (r"limit of (.+?) as x goes to (\w+)", r"limit(\1, x, \2)"),
    (r"(?:[Cc]ompute|[Ss]implify|[Ww]hat is):? (.+?)[.?]?\s*$", r"\1"),
)
"""Patterns of questions that take one calculation, and the expression to calculate."""
_FACTS = (
    (r"which island", r"island of (\w+)"),
    (r"which year", r"in (\d{4})\b"),
    (r"which lake", r"(Lake \w+)"),
    (r"how many crocus", r"About (\d+) flowers"),
    (r"wrap", r"wrapped in (\w+)"),
    (r"ocean floor", r"ocean floor is (\w+)"),
    (r"Seal Rock depart", r"Seal Rock\W+(\d\d:\d\d)"),
    (r"last ferry", r"last ferry from North Island leaves at (\d\d:\d\d)"),
    (r"built the harbour wall", r"built in \d+ by (\w+ \w+)"),
    (r"ticket .*cost", r"ticket costs (\d+ \w+)"),
    (r"address is the chandler", r"chandler is at (.+?)\."),
)
"""Patterns of questions, and of the text with the answer."""
_LINKS = (
    (r"ferry", ("Ferry timetable",)),
    (r"harbour wall", ("History",)),
    (r"ticket", ("Museum", "Show prices")),
    (r"chandler", ("Find a shop",)),
)
"""Patterns of questions, and the links that lead to the answer."""


class DemoModel(Model):
    """Decides each turn from the question, the available tools and their results so far."""

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        options: Mapping[str, Any] | None = None,  # noqa: ARG002 - rules have no settings
    ) -> Completion:
        """Answer by rules. The token counts are 0."""
        question = next((message["content"] for message in messages if message.get("role") == "user"), "")
        results = [str(message["content"]) for message in messages if message.get("role") == "tool"]
        names = {tool["function"]["name"] for tool in tools}
        if names & {"computer", "pyautogui"}:
            action = act_on_desktop(_first_text(question), messages, names)
        else:
            action = UNKNOWN if not question else _decide(str(question), results, names)
        return Completion(_message(action, len(results)), {"prompt_tokens": 0, "completion_tokens": 0})


def _first_text(content: Any) -> str:
    """Return the text of a message that may have images."""
    return str(content[0]["text"]) if isinstance(content, list) else str(content)


Action = str | dict[str, Any]
"""A final answer, or a tool and its arguments."""


def _decide(question: str, results: list[str], tools: set[str]) -> Action:
    if "calculator" in tools:
        return _calculate(question, results)
    if "price" in tools:
        return _add_up(question, results)
    if "python" in tools:
        return _program(question, results)
    if "click" in tools:
        return _browse(question, results)
    if {"search", "read"} <= tools:
        return _look_up(question, results)
    return UNKNOWN


def _calculate(question: str, results: list[str]) -> Action:
    if results:
        return f"The calculator says \\boxed{{{results[-1]}}}."
    for pattern, expression in _EXPRESSIONS:
        if found := re.search(pattern, question):
            return {"tool": "calculator", "expression": found.expand(expression).replace("^", "**")}
    return UNKNOWN


def _add_up(question: str, results: list[str]) -> Action:
    """Answer a question of the project that `paragent init` makes: how much some items of a shop cost."""
    items = re.findall(r"(\d+) (\w+)", question)
    if len(results) < len(items):
        return {"tool": "price", "item": items[len(results)][1]}
    if not all(re.fullmatch(r"\d+\.\d+", result) for result in results):
        return UNKNOWN
    total = sum(int(count) * float(result) for (count, _), result in zip(items, results, strict=True))
    return f"The prices are {', '.join(results)}.\nAnswer: {total:.2f}"


def _program(question: str, results: list[str]) -> Action:
    for name, program in _PROGRAMS.items():
        if f"def {name}(" in question:
            code = question + program
            return f"```python\n{code}```" if results else {"tool": "python", "code": code}
    for words, code in _RESULTS.items():
        if words in question:
            return f"Answer: {results[-1].strip()}" if results else {"tool": "python", "code": code}
    return UNKNOWN


def _look_up(question: str, results: list[str]) -> Action:
    if not results:
        return {"tool": "search", "query": question}
    ids = re.findall(r"^\[(.+?)\]", results[0], re.MULTILINE)
    for document, text in zip(ids, results[1:], strict=False):
        if answer := _fact(question, text):
            return f"It says so in [{document}].\nAnswer: {answer}"
    return {"tool": "read", "document": ids[len(results) - 1]} if len(results) <= len(ids) else UNKNOWN


def _browse(question: str, results: list[str]) -> Action:
    if not results:
        start = re.search(r"Begin at (\S+)", question)
        return {"tool": "open", "url": start[1]} if start else UNKNOWN
    page = results[-1]
    if answer := _fact(question, page):
        return f"Answer: {answer}"
    if "chandler" in question and (field := re.search(r"\[(\d+) [^\]]*Kind of shop", page)):
        return {"tool": "type", "element": int(field[1]), "text": "chandler", "submit": True}
    links = next((links for words, links in _LINKS if words in question), ())
    for link in reversed(links):
        if found := re.search(rf"\[(\d+) \w+: {re.escape(link)}", page):
            return {"tool": "click", "element": int(found[1])}
    return UNKNOWN


def _fact(question: str, text: str) -> str | None:
    for pattern, fact in _FACTS:
        if re.search(pattern, question) and (found := re.search(fact, text)):
            return found[1]
    return None


def _message(action: Action, turn: int) -> dict[str, Any]:
    if isinstance(action, str):
        return {"role": "assistant", "content": action}
    name = action.pop("tool")
    function = {"name": name, "arguments": json.dumps(action)}
    call = {"id": f"demo_{turn}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}

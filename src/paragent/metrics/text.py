"""Texts made comparable: the final answer within a message, and normalisation as SQuAD does it."""

from __future__ import annotations

import re
import string

__all__ = ["final_answer", "normalised", "words"]

_MARKED = re.compile(
    r"(?:^|\n)[ \t>*_#-]*(?:the[ ]+)?(?:final[ ]+)?answer[ \t*_]*(?:is|:)[ \t*_:]*(?P<answer>[^\n]*\S[^\n]*)",
    re.IGNORECASE,
)
_AFTER_HASHES = re.compile(r"(?:^|\n)[ \t]*####[ \t]*(?P<answer>\S[^\n]*)\s*\Z")
"""GSM8K's convention: the last line is `#### 72`. Higher up, four hashes are a heading of Markdown."""
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def final_answer(message: str) -> str:
    r"""Return the part of a message that is its answer.

    In this order: what follows `####` in the last line, the last `\boxed{...}`, the last line `Answer: ...`, all of it.
    """
    if found := _AFTER_HASHES.search(message):
        return _boxed_or_all(found["answer"])
    if (boxed := _last_boxed(message)) is not None:
        return boxed
    marked = [found["answer"] for found in _MARKED.finditer(message)]
    return _boxed_or_all(marked[-1]) if marked else message.strip()


def _boxed_or_all(text: str) -> str:
    boxed = _last_boxed(text)
    return text.strip().strip("*_").strip() if boxed is None else boxed


def _last_boxed(message: str) -> str | None:
    start = message.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for at in range(begin - 1, len(message)):
        depth += {"{": 1, "}": -1}.get(message[at], 0)
        if depth == 0:
            return message[begin:at].strip()
    return None


def normalised(text: str) -> str:
    """Return a text in lower case, without punctuation, articles and extra space, as SQuAD's own script does."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def words(text: str) -> list[str]:
    """Return the words of a normalised text."""
    return normalised(text).split()

"""Programs that the hand-written policy knows by heart."""

from __future__ import annotations

__all__ = ["PROGRAMS", "RESULTS"]

PROGRAMS = {
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
"""The rest of a function, by its name."""
RESULTS = {
    "prime numbers are there below 1000": "print(sum(all(n % d for d in range(2, n)) for n in range(2, 1000)))",
    "digits of 2 to the power of 1000": "print(sum(map(int, str(2**1000))))",
    "most often in the word 'Mississippi'": "word = 'mississippi'\nprint(max(word, key=word.count))",
}
"""A program that prints the answer, by words of the question."""

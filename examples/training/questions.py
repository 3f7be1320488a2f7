"""Word problems: the wording says which calculation it takes, and in which order."""

import random

FORMS = {
    "+": ["Ann has {a} coins and finds {b} more.", "{a} birds are on {b} birds join."],
    "-": ["Ann has {a} coins and loses {b}.", "{b} of {a} birds are gone."],
    "*": ["{a} boxes with {b} coins each.", "{a} rows of {b} birds each."],
}


def question(number, seed):
    """Return the task `number` of an endless series."""
    chance = random.Random(f"{seed} {number}")
    sign = chance.choice(list(FORMS))
    b = chance.randint(2, 9)
    a = chance.randint(19, 30) if sign == "-" else chance.randint(2, 9)
    text = chance.choice(FORMS[sign]).format(a=a, b=b)
    return {"id": f"task-{number:05}", "question": text, "answer": str({"+": a + b, "-": a - b, "*": a * b}[sign])}

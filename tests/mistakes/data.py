"""Mistakes with the data of a benchmark."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake

_RUN = "paragent rollout --mode math --model demo"

MISTAKES = (
    Mistake(
        title="no --data",
        command=_RUN,
        says=("--data is missing", "`--data sample`"),
    ),
    Mistake(
        title="typing error in the name of the file",
        command=f"{_RUN} --data task.jsonl",
        says=("--data: there is no file task.jsonl, did you mean 'tasks.jsonl'?",),
    ),
    Mistake(
        title="a file that is elsewhere",
        command=f"{_RUN} --data benchmark.jsonl",
        says=("--data: there is no file benchmark.jsonl; relative paths start at",),
    ),
    Mistake(
        title="a folder that does not exist",
        command=f"{_RUN} --data data/tasks.jsonl",
        says=("there is no folder data, so there is no file tasks.jsonl in it; check the path",),
    ),
    Mistake(
        title="a folder instead of a file",
        command=f"{_RUN} --data data",
        files={"data/tasks.jsonl": "{}"},
        says=("--data: data is a folder; name a file in it",),
    ),
    Mistake(
        title="an empty file",
        command=f"{_RUN} --data empty.jsonl",
        files={"empty.jsonl": ""},
        says=("empty.jsonl has no tasks; write one JSON object per line, such as",),
    ),
    Mistake(
        title="text that is not JSON",
        command=f"{_RUN} --data text.jsonl",
        files={"text.jsonl": "What is 2 + 2?\n"},
        says=("text.jsonl:1: not JSON", "a line of JSON lines is an object such as"),
    ),
    Mistake(
        title="a broken JSON document",
        command=f"{_RUN} --data broken.json",
        files={"broken.json": '[{"question": "2 + 2?"},\n{"question": '},
        says=("broken.json:2: not JSON", "nothing was started"),
    ),
    Mistake(
        title="a format that --data does not read",
        command=f"{_RUN} --data tasks.yaml",
        files={"tasks.yaml": "question: 2 + 2?\n"},
        says=("tasks.yaml:1: not JSON", "--data reads JSON lines, JSON, CSV, Parquet and Arrow files", "not .yaml"),
    ),
    Mistake(
        title="a spreadsheet or another binary file",
        command=f"{_RUN} --data tasks.xlsx",
        files={"tasks.xlsx": b"PK\x03\x04\xff\xfe\x8f\x00" * 20},
        says=("tasks.xlsx cannot be read as UTF-8", "Save the tasks as JSON lines, CSV or Parquet"),
    ),
    Mistake(
        title="tasks without a question",
        command=f"{_RUN} --data fields.jsonl",
        files={"fields.jsonl": '{"id": "a", "problem": "2 + 2?"}\n'},
        says=("fields.jsonl:1: no question", "or --data-field question=NAME with one of its own: id, problem"),
    ),
    Mistake(
        title="tasks whose question has a name with a capital letter",
        command=f"{_RUN} --data capitals.csv",
        files={"capitals.csv": "Question,Best Answer\n" + "2 + 2?,4\n" * 12},
        says=(
            "12 lines cannot be read as a task; nothing was started: capitals.csv:1: no question:",
            "for 'Question', use --data-field question=Question (the same in 11 more lines)",
        ),
    ),
    Mistake(
        title="tasks without an answer",
        command=f"{_RUN} --data answers.jsonl --engine inline",
        files={"answers.jsonl": '{"id": "a", "question": "2 + 2?", "solution": "4"}\n'},
        status=0,
        says=(
            "no task has an expected answer, so nothing is scored",
            "its key is answer, ground_truth or expected, or the one that --data-field answer=NAME names",
        ),
    ),
    Mistake(
        title="two tasks with the same id",
        command=f"{_RUN} --data twice.jsonl",
        files={"twice.jsonl": '{"id": "a", "question": "?"}\n{"id": "a", "question": "?"}\n'},
        says=("twice.jsonl:2: duplicate id 'a', first used in line 1; give each task an id of its own, or none",),
    ),
    Mistake(
        title="a damaged Parquet file",
        command=f"{_RUN} --data tasks.parquet",
        files={"tasks.parquet": "question\n"},
        says=("--data: tasks.parquet cannot be read",),
    ),
    Mistake(
        title="a line of a CSV file with too few fields",
        command=f"{_RUN} --data tasks.csv",
        files={"tasks.csv": "id,question,answer\na,2 + 2?\n"},
        says=("--data: tasks.csv cannot be read: line 2 does not have 3 fields",),
    ),
    Mistake(
        title="--data-field without a name",
        command=f"{_RUN} --data tasks.jsonl --data-field problem",
        says=("--data-field must be of the form NAME=VALUE, not 'problem'",),
    ),
    Mistake(
        title="--data-field with a field that the data does not have",
        command=f"{_RUN} --data tasks.jsonl --data-field question=problem",
        says=("no field 'problem', which --data-field names; there are: id, question, answer",),
    ),
    Mistake(
        title="--task-id of a task that does not exist",
        command=f"{_RUN} --data tasks.jsonl --task-id c",
        says=("--task-id: tasks.jsonl has no task 'c'; its first ids are a, b",),
    ),
    Mistake(
        title="a task file that is not one of OSWorld",
        command="paragent osworld check --data tasks.jsonl",
        says=("tasks.jsonl:1: the task 'a' has no instruction, evaluator", "2 lines cannot be read as a task"),
    ),
)

"""Mistakes with runs, results and the view."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake
from tests.mistakes.surroundings import busy_port, busy_run, runs

_RUN = "paragent rollout --mode math --model demo --data tasks.jsonl"

MISTAKES = (
    Mistake(
        title="a run that does not exist",
        command="paragent show monday",
        given=runs,
        says=("there is no run monday; `paragent runs` lists the runs in results",),
    ),
    Mistake(
        title="typing error in the name of a run",
        command="paragent show frist",
        given=runs,
        says=("there is no run frist, did you mean 'first'? `paragent runs` lists the runs in results",),
    ),
    Mistake(
        title="a task that the run does not have",
        command="paragent show first c",
        given=runs,
        says=("the run has no result for attempt 1 at task 'c'; without a task, `paragent show` lists the results",),
    ),
    Mistake(
        title="typing error in a status",
        command="paragent show first --status complete",
        given=runs,
        says=("'complete' is not one of completed, failed,", "did you mean completed?"),
    ),
    Mistake(
        title="an unknown format",
        command="paragent export first --format atfi --output out",
        given=runs,
        says=("there is no export format called 'atfi', did you mean 'atif'? There are:",),
    ),
    Mistake(
        title="a folder for a format with one file",
        command="paragent export first --output results",
        given=runs,
        says=("--output: the format 'jsonl' writes a file, and results is a folder",),
    ),
    Mistake(
        title="a file for a format with a folder",
        command="paragent export first --format atif --output tasks.jsonl",
        given=runs,
        says=("--output: the format 'atif' writes a folder, and tasks.jsonl is a file",),
    ),
    Mistake(
        title="an output below a file",
        command="paragent export first --output tasks.jsonl/out.jsonl",
        given=runs,
        status=1,
        says=("tasks.jsonl: File exists; choose a path without a file in the place of a folder",),
    ),
    Mistake(
        title="runs without common tasks",
        command="paragent compare first second",
        given=runs,
        says=("first and second have no scored task in common", "compare runs of the same data"),
    ),
    Mistake(
        title="a score that the runs do not have",
        command="paragent compare first second --metric f1",
        given=runs,
        says=(
            "results/first has no scores by 'f1'; it has: math. Add them: paragent rescore results/first --metric f1",
        ),
    ),
    Mistake(
        title="typing error in the scorer of rescore",
        command="paragent rescore first --metric contain",
        given=runs,
        says=("there is no scorer called 'contain', did you mean 'contains'? There are:",),
    ),
    Mistake(
        title="a judge without a model",
        command="paragent rescore first --metric llm_judge",
        given=runs,
        says=("the scorer 'llm_judge' needs a judge model: set --judge-model",),
    ),
    Mistake(
        title="a file to import that does not exist",
        command="paragent import trajectory.json",
        says=("there is no file trajectory.json; relative paths start at",),
    ),
    Mistake(
        title="a file to import of another format",
        command="paragent import tasks.jsonl",
        says=(
            "nothing to import in tasks.jsonl: name ATIF trajectories (.json), logs of inspect (.eval, .json) or folders",
        ),
    ),
    Mistake(
        title="an import into a run that exists",
        command="paragent import trajectory.json --run-name first",
        files={"trajectory.json": "{}"},
        given=runs,
        says=("results/first exists already; choose another --run-name",),
    ),
    Mistake(
        title="control of a run that is not active",
        command="paragent ctl first pause",
        given=runs,
        says=("no session of first is active; the command that started the run continues it",),
    ),
    Mistake(
        title="control of a run that does not exist",
        command="paragent ctl monday status",
        given=runs,
        says=("there is no run monday; `paragent runs` lists the runs in results",),
    ),
    Mistake(
        title="typing error in a command of ctl",
        command="paragent ctl first paus",
        given=runs,
        says=("there is no command 'paus'; did you mean pause?",),
    ),
    Mistake(
        title="a run that another process uses",
        command=f"{_RUN} --run-name first",
        given=busy_run,
        says=("results/first is in use by process", "wait until it ends, or choose another --run-name"),
    ),
    Mistake(
        title="other settings for an existing run",
        command=f"{_RUN} --run-name first --attempts 2",
        given=runs,
        says=(
            "results/first is a run with other settings (attempts was 1 and is 2)",
            "choose another --run-name, or use --fresh to rename it and start a new run",
        ),
    ),
    Mistake(
        title="results in a file",
        command=f"{_RUN} --output-dir tasks.jsonl",
        status=1,
        says=("cannot write in tasks.jsonl/", "Not a directory", "--output-dir sets the folder"),
    ),
    Mistake(
        title="results in a folder that is read-only",
        command=f"{_RUN} --output-dir closed",
        files={"closed/note.txt": ""},
        shell="unshare -rm sh -c 'mount --bind closed closed && mount -o remount,bind,ro closed && $PARAGENT'",
        status=1,
        says=(
            "cannot write in closed/",
            "Read-only file system; choose a folder that is not read-only. --output-dir sets",
        ),
    ),
    Mistake(
        title="a full disk",
        command=f"{_RUN} --output-dir full",
        files={"full/note.txt": ""},
        shell="unshare -rm sh -c 'mount -t tmpfs -o size=64k tmpfs full && $PARAGENT'",
        status=1,
        says=("database or disk is full", "when the cause is removed, the same command continues"),
    ),
    Mistake(
        title="a view before the first run",
        command="paragent view",
        says=(
            "there is no folder results here, so there are no runs to look at; name another folder, or make a run with",
            "`paragent rollout --mode math --data sample --model demo`",
        ),
    ),
    Mistake(
        title="a view of a run that does not exist",
        command="paragent view monday",
        says=("there is no run and no folder monday; `paragent runs` lists the runs in ./results",),
    ),
    Mistake(
        title="a port for the view that another program uses",
        command="paragent view results --port <port>",
        files={"results/note.txt": ""},
        given=busy_port,
        says=("cannot listen on 127.0.0.1 port", "Address already in use; choose another --port or --host"),
    ),
    Mistake(
        title="a port for the view that does not exist",
        command="paragent view results --port 123456",
        files={"results/note.txt": ""},
        says=("--port must be from 0 to 65535, not 123456",),
    ),
    Mistake(
        title="a port for an environment that another program uses",
        command="paragent env serve --mode math --transport http --port <port>",
        given=busy_port,
        says=("cannot listen on 127.0.0.1 port", "address already in use; choose another --port or --host"),
    ),
)

"""Reads exports with the libraries of the tools that own the formats; runs in the environment `.venv-formats`.

`read_exports.py atif FOLDER` prints the errors that Harbor's validator finds, by file. `read_exports.py inspect FILE` prints what
inspect's library reads. `read_exports.py rewrite FILE` lets inspect's library read a log and write it again.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any


def atif(folder: Path) -> dict[str, list[str]]:
    validator = importlib.import_module("harbor.utils.trajectory_validator").TrajectoryValidator()
    found = {}
    for path in sorted(folder.glob("*/agent/trajectory.json")):
        validator.validate(path)
        found[path.parent.parent.name] = list(validator.errors)
    return found


def inspect(path: Path) -> dict[str, Any]:
    log_module = importlib.import_module("inspect_ai.log")
    log = log_module.read_eval_log(str(path), resolve_attachments=True)
    summaries = log_module.read_eval_log_sample_summaries(str(path))
    by_id = [log_module.read_eval_log_sample(str(path), one.id, one.epoch).uuid for one in summaries]
    return {
        "log": json.loads(log.model_dump_json()),
        "summaries": [json.loads(one.model_dump_json()) for one in summaries],
        "uuids": by_id,
    }


def rewrite(path: Path) -> str:
    log_module = importlib.import_module("inspect_ai.log")
    log_module.write_eval_log(log_module.read_eval_log(str(path)), str(path.with_name("rewritten.eval")))
    return str(path.with_name("rewritten.eval"))


if __name__ == "__main__":
    print(json.dumps({"atif": atif, "inspect": inspect, "rewrite": rewrite}[sys.argv[1]](Path(sys.argv[2]))))

"""`paragent rollout` as the command of the parallel rollout guide: `python src/run_parallel_rollout.py --mode math ...`.

It is for clones; packages do not contain it.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line's `rollout` with the arguments of this program."""
    try:
        from paragent.cli import main as run_command
    except ModuleNotFoundError as missing:
        sys.exit(
            f"{sys.executable} has no package {missing.name}. Run `pip install '.[demo]'` in the clone, or, "
            "after `make demo`, use .venv/bin/python."
        )
    return run_command(["rollout", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())

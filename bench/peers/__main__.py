"""`python -m bench.peers [NAME ...]`: create the virtual environments of peers; takes minutes the first time."""

from __future__ import annotations

import sys

from bench.peers.environments import PEERS, create, peer_versions


def main(names: list[str]) -> int:
    """Create the environments of these peers (all if empty); return 1 if one failed."""
    if unknown := [name for name in names if name not in PEERS]:
        print(f"no peer is called {unknown[0]!r}; there are: {', '.join(PEERS)}", file=sys.stderr)
        return 2
    failed = False
    for name in names or PEERS:
        print(f"==> {name}", file=sys.stderr, flush=True)
        try:
            create(name)
        except RuntimeError as problem:
            failed = True
            print(f"{name} is not installed: {problem}", file=sys.stderr)
    print(", ".join(f"{package} {version}" for package, version in peer_versions().items()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

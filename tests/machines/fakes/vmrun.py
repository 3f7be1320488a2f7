"""A fake of VMware's `vmrun`: accepts its command lines, prints its replies, rejects what it rejects."""

from __future__ import annotations

import errno
import fcntl
import random
import socket
import sys
from pathlib import Path

from tests.machines.fakes.machines import STATE, delete_disk, load, record_call, save, start, stop

PORT = 5977
"""All machines listen at this port; each has its own address."""


def listen() -> socket.socket:
    """Return a listener at an address of this host at which no other machine listens."""
    for _ in range(50):
        address = ".".join(["127", *(str(random.randrange(1, 255)) for _ in range(3))])
        try:
            return socket.create_server((address, PORT), backlog=64)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    sys.exit(f"Error: port {PORT} is in use at all addresses")


def main(words: list[str]) -> None:
    record_call("vmrun", words)
    assert words[:2] == ["-T", "ws"], words
    command, *rest = words[2:]
    machines = load()
    if command == "listSnapshots":
        print("Total snapshots: 1\ninit_state")
    elif command == "list":
        running = [path for path, about in machines.items() if about["pid"]]
        print(f"Total running VMs: {len(running)}", *running, sep="\n")
    elif command == "clone":
        base, target, kind, snapshot, name = rest
        assert (Path(base).suffix, kind, snapshot) == (".vmx", "linked", "-snapshot=init_state")
        assert name == f"-cloneName={Path(target).stem}"
        Path(target).parent.mkdir(parents=True)
        Path(target).write_text("clone")
        machines[target] = {"pid": 0, "address": "", "snapshot": ""}
    elif command == "snapshot":
        machines[rest[0]]["snapshot"] = rest[1]
    elif command == "start":
        assert rest[1] == "nogui"
        about = machines[rest[0]]
        if about["pid"]:
            sys.exit("Error: The virtual machine is already running")
        with listen() as listener:
            about["address"] = listener.getsockname()[0]
            about["pid"] = start(Path(rest[0]).stem, listener)
    elif command == "getGuestIPAddress":
        assert rest[1] == "-wait"
        print(machines[rest[0]]["address"])
    elif command == "revertToSnapshot":
        about = machines[rest[0]]
        if about["snapshot"] != rest[1]:
            sys.exit("Error: Invalid snapshot name")
        stop(about["pid"])
        delete_disk(Path(rest[0]).stem)
        about["pid"] = 0
    elif command == "stop":
        assert rest[1] == "hard"
        stop(machines[rest[0]]["pid"])
        machines[rest[0]]["pid"] = 0
    elif command == "deleteVM":
        if machines.pop(rest[0])["pid"]:
            sys.exit("Error: The virtual machine should not be powered on. It is already running.")
        Path(rest[0]).unlink()
        delete_disk(Path(rest[0]).stem)
    else:
        sys.exit(f"Error: Unrecognized command: {command}")
    save(machines)


if __name__ == "__main__":
    with (STATE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        main(sys.argv[1:])

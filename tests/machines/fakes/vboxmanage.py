"""A fake of `VBoxManage`: accepts its command lines, prints its replies, rejects what it rejects."""

from __future__ import annotations

import fcntl
import socket
import sys
from typing import Any

from tests.machines.fakes.machines import STATE, delete_disk, load, record_call, save, start, stop


def main(words: list[str]) -> None:
    record_call("vboxmanage", words)
    machines = load()
    command, *rest = words
    if command == "list":
        chosen = [name for name, about in machines.items() if rest[0] == "vms" or about["pid"]]
        for name in chosen:
            print(f'"{name}" {{{hash(name):032x}}}')
    elif command == "showvminfo":
        print(f'name="{rest[0]}"\ngroups="{machines[rest[0]]["group"]}"')
    elif command == "clonevm":
        options = dict(zip(rest[1:-1:2], rest[2:-1:2], strict=True))
        assert rest[-1] == "--register"
        assert (options["--snapshot"], options["--options"]) == ("init_state", "link")
        machines[options["--name"]] = {"pid": 0, "group": options["--groups"], "port": 0, "snapshot": ""}
    elif command == "modifyvm":
        forward = rest[rest.index("--natpf1") + 1].split(",")
        assert (forward[0], forward[1], forward[5]) == ("port5000", "tcp", "5000")
        machines[rest[0]] |= {"host": forward[2], "port": int(forward[3])}
    elif command == "snapshot":
        snapshot(machines, rest)
    elif command == "startvm":
        assert rest[1:] == ["--type", "headless"]
        about = machines[rest[0]]
        if about["pid"]:
            sys.exit(f"VBoxManage: error: The machine '{rest[0]}' is already locked by a session")
        with socket.create_server((about["host"], about["port"]), backlog=64) as listener:
            about["pid"] = start(rest[0], listener)
    elif command == "controlvm":
        assert rest[1] == "poweroff"
        stop(machines[rest[0]]["pid"])
        machines[rest[0]]["pid"] = 0
    elif command == "unregistervm":
        assert rest[1] == "--delete"
        if machines.pop(rest[0])["pid"]:
            sys.exit(f"VBoxManage: error: Cannot unregister the machine '{rest[0]}' while it is locked")
        delete_disk(rest[0])
    else:
        sys.exit(f"VBoxManage: error: Invalid command '{command}'")
    save(machines)


def snapshot(machines: dict[str, Any], rest: list[str]) -> None:
    name, action = rest[:2]
    if action == "list":
        print('SnapshotName="init_state"\nSnapshotUUID="0"\nCurrentSnapshotName="init_state"')
    elif action == "take":
        machines[name]["snapshot"] = rest[2]
    elif machines[name]["pid"]:
        sys.exit("VBoxManage: error: Cannot restore a snapshot of a running machine")
    else:
        assert machines[name]["snapshot"] == rest[2]
        delete_disk(name)


if __name__ == "__main__":
    with (STATE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        main(sys.argv[1:])

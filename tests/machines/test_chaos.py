"""Many workers and few QEMU machines, while workers, machines and the pool service are killed at random.

Each holder looks for files of others, leaves its own, and looks again before it releases the machine. `make test-nightly` sets
PARAGENT_CHAOS_LEASES=200, which takes minutes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paragent.machines.cleanup import cache_folder, owned_processes

LEASES = int(os.environ.get("PARAGENT_CHAOS_LEASES", "24"))
WORKERS, MACHINES = 10, 4
SECONDS = 60 + 5.0 * LEASES
"""An idle host with two cores needs 0.4 s for each lease."""
POOL = "chaos"
RUN_SECONDS = SECONDS + 60

PLAN = dict.fromkeys((3, 9, 13, 19, 26, 30, 36), "worker") | dict.fromkeys((6, 16, 23, 33), "machine") | {12: "service"}
"""What is killed, by the number of the lease modulo 40."""

WORKER = """
import json, os, sys, time
from paragent import InfrastructureError, PoolClient
address, journal, target = sys.argv[1], sys.argv[2], int(sys.argv[3])
out = os.open(journal, os.O_WRONLY | os.O_APPEND)
client = PoolClient(address, reconnect=60)
def note(**what):
    os.write(out, (json.dumps(what) + chr(10)).encode())
number = 0
while open(journal).read().count('"done"') < target:
    number += 1
    mine = f"holder-{os.getpid()}-{number}"
    try:
        with client.lease(timeout=90, duration=3.0) as machine:
            seen = machine.execute("ls / /data", timeout=20).output.split()
            foreign = [name for name in seen if name.startswith("holder")]
            note(what="begin", pid=os.getpid(), token=machine.token, foreign=foreign)
            machine.execute(f"touch /{mine} /data/{mine}", timeout=20)
            time.sleep(0.3)
            seen = machine.execute("ls / /data", timeout=20).output.split()
            foreign = [name for name in seen if name.startswith("holder") and name != mine]
            note(what="done", token=machine.token, foreign=foreign, kept=seen.count(mine))
    except InfrastructureError as error:
        note(what="disturbed", why=type(error).__name__)
"""


class Chaos:
    """Starts the service and the workers, kills at random, and restarts what was killed."""

    def __init__(self, folder: Path) -> None:
        self.journal = folder / "journal"
        self.journal.touch()
        self.log = (folder / "service.log").open("w")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.chance = random.Random(4)
        self.killed: Counter[str] = Counter()
        self.service = self.start_service()
        self.workers = [self.start_worker() for _ in range(WORKERS)]

    def start_service(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "paragent", "pool", "serve", "--name", POOL, "--port", str(self.port)]
        command += ["--num-vms", str(MACHINES), "--num-spares", "1"]
        return subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def start_worker(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", WORKER, f"127.0.0.1:{self.port}", str(self.journal), str(LEASES)]
        return subprocess.Popen(command, stderr=self.log)

    def notes(self, what: str) -> list[dict[str, Any]]:
        notes = [json.loads(line) for line in self.journal.read_text().splitlines()]
        return [note for note in notes if note["what"] == what]

    def run(self) -> None:
        """Kill in step with finished leases, so that the test also ends on a slow host."""
        deadline, before = time.monotonic() + SECONDS, 0
        while (done := len(self.notes("done"))) < LEASES and time.monotonic() < deadline:
            for number in range(before, done):
                if kind := PLAN.get(number % 40):
                    self.kill(kind)
            before = done
            time.sleep(0.1)
            if self.service.poll() is not None:
                self.service = self.start_service()
            for number, worker in enumerate(self.workers):
                if worker.poll() is not None:
                    self.workers[number] = self.start_worker()

    def holders(self) -> list[subprocess.Popen[bytes]]:
        """Return the workers that hold a machine now."""
        ended = {note["token"] for note in self.notes("done")}
        holding = {note["pid"] for note in self.notes("begin") if note["token"] not in ended}
        return [worker for worker in self.workers if worker.pid in holding and worker.poll() is None]

    def kill(self, kind: str) -> None:
        if kind == "worker":
            self.chance.choice(self.holders() or self.workers).kill()
        elif kind == "service":
            self.service.kill()
            self.service.wait(20)
        elif machines := sorted(owned_processes(owner.name for owner in owners())):
            os.kill(self.chance.choice(machines), signal.SIGKILL)
        self.killed[kind] += 1

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait(20)
        if self.service.poll() is None:
            self.service.terminate()
            self.service.wait(60)
        self.log.close()


def owners() -> list[Path]:
    return sorted(cache_folder("owners", POOL).iterdir())


@pytest.mark.qemu
@pytest.mark.slow(30)
@pytest.mark.timeout(RUN_SECONDS)
def test_no_overlapping_leases_no_dirty_machine_no_leak(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path)
    try:
        chaos.run()
    finally:
        chaos.end()
    said = (tmp_path / "service.log").read_text()[-3000:]
    begun, done = chaos.notes("begin"), chaos.notes("done")
    assert len(done) >= LEASES, (len(done), chaos.killed, said)
    assert [note for note in begun if note["foreign"]] == [], "a dirty machine was leased"
    assert [note for note in done if note["foreign"] or note["kept"] != 2] == [], "two holders had one machine"
    tokens = [note["token"] for note in begun]
    assert len(tokens) == len(set(tokens)), "two holders had the same token"
    assert set(chaos.killed) == {"worker", "machine", "service"}, chaos.killed
    assert owners() == [], said
    assert owned_processes(owner.name for owner in owners()) == {}
    assert not leaked(), said


def leaked() -> list[str]:
    """Return the command lines of processes of this pool that are still running."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            mark = (folder / "environ").read_bytes()
            if b"PARAGENT_OWNER=chaos-" in mark:
                found.append((folder / "cmdline").read_bytes().decode(errors="replace")[:200])
        except OSError:
            continue
    return found

"""A small policy learns to solve word problems with a calculator, by GRPO on two CPU cores.

    python train.py                 # about a minute
    python train.py --chaos         # while workers, the endpoint and the trainer are killed at random
    python train.py --chaos --plot curve.png

This program starts the endpoint (endpoint.py) and the trainer (trainer.py) as processes of their own and starts them again when
they have been killed. At the end it checks that each group was trained exactly once.
"""

import argparse
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from learning import first_policy
from questions import question
from report import print_report, read_record, write_plot

HERE = Path(__file__).parent
KINDS = ("worker", "endpoint", "trainer")


class Processes:
    """The endpoint and the trainer. A process that has been killed is started again."""

    def __init__(self, folder, groups, seed):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        url = f"http://127.0.0.1:{self.port}/v1"
        self.commands = {
            "endpoint": ["endpoint.py", str(folder), str(self.port)],
            "trainer": ["trainer.py", str(folder), "--url", url, "--groups", str(groups), "--seed", str(seed)],
        }
        self.environment = {**os.environ, "POLICY_KEY": secrets.token_hex(16), "OPENBLAS_NUM_THREADS": "1"}
        self.running = {name: self.start(name) for name in self.commands}

    def start(self, name):
        """Start a process."""
        program, *arguments = self.commands[name]
        return subprocess.Popen([sys.executable, str(HERE / program), *arguments], env=self.environment, cwd=HERE)

    def restart_killed(self):
        """Start killed processes again; return whether the trainer has finished."""
        for name, process in self.running.items():
            code = process.poll()
            if code == -signal.SIGKILL:
                self.running[name] = self.start(name)
            elif code is not None and (name, code) != ("trainer", 0):
                raise SystemExit(f"the {name} ended with exit code {code}")
        return self.running["trainer"].poll() == 0

    def kill(self, kind, chance):
        """Kill one process of a kind; return whether there was one."""
        if kind in self.running:
            self.running[kind].kill()
            return True
        workers = self.workers()
        if workers:
            workers[chance.randrange(len(workers))].kill()
        return bool(workers)

    def workers(self):
        """Return the worker processes of the trainer."""
        try:
            children = psutil.Process(self.running["trainer"].pid).children()
            return [child for child in children if "paragent.worker" in " ".join(child.cmdline())]
        except psutil.NoSuchProcess:
            return []

    def stop(self):
        """End both processes."""
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


class Chaos:
    """Kills a process when some versions have been published since the last kill, after a random time."""

    def __init__(self, seed, versions):
        self.chance = random.Random(seed)
        self.versions = versions
        self.kinds = []
        self.kills = []
        self.next_version, self.at = 1, None

    def act(self, processes, version):
        """Kill a process if it is time to."""
        if version >= self.next_version and self.at is None:
            self.at = time.monotonic() + self.chance.uniform(0, 0.5)
        if self.at is None or time.monotonic() < self.at:
            return
        self.kinds = self.kinds or self.chance.sample(KINDS, len(KINDS))
        if processes.kill(self.kinds[-1], self.chance):
            self.kills.append((time.time(), self.kinds.pop()))
            self.next_version, self.at = version + self.chance.randint(1, self.versions), None


def run(folder, options):
    """Train in a folder; return the begin and the kills."""
    questions = [question(number, options.seed)["question"] for number in range(50)]
    policy = first_policy(options.seed, questions)
    policy.save(folder / "policy-0000.npz")
    policy.save(folder / "policy.npz")
    chaos = Chaos(options.seed, options.versions_between_kills) if options.chaos else None
    begin = time.time()
    deadline = begin + options.time_limit
    processes = Processes(folder, options.groups, options.seed)
    try:
        while not processes.restart_killed():
            if time.time() > deadline:
                raise SystemExit(f"not finished after {options.time_limit:g} s")
            if chaos:
                chaos.act(processes, read_record(folder)["version"])
            time.sleep(0.05)
    finally:
        processes.stop()
    return begin, chaos.kills if chaos else []


def main():
    """Train, print the report, and return whether everything is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=480, help="groups of eight rollouts (default: 480)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the questions, the first weights and the kills")
    parser.add_argument("--chaos", action="store_true", help="kill workers, the endpoint and the trainer at random")
    parser.add_argument("--versions-between-kills", type=int, default=10, help="at most so many (default: 10)")
    parser.add_argument("--plot", type=Path, help="write the learning curve to this PNG file (needs matplotlib)")
    parser.add_argument("--folder", type=Path, help="keep everything in this new folder (default: a temporary one)")
    parser.add_argument("--time-limit", type=float, default=600, help="give up after so many seconds (default: 600)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        begin, kills = run(folder, options)
        record = read_record(folder)
    fine = print_report(record, options.groups, begin, kills)
    if options.plot:
        write_plot(options.plot, record, begin, kills)
    return fine


if __name__ == "__main__":
    sys.exit(0 if main() else 1)

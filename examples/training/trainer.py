"""The trainer: takes groups of rollouts, learns from them, and publishes new versions of the policy.

It may be killed at any line. Its checkpoint has the weights and the ids of the groups that they were trained with, in one file,
and is written before these groups are accepted. A group that is delivered again although the checkpoint has it is accepted
without training, so each group is trained exactly once.
"""

import argparse
import json
import os
import time
import urllib.request
from dataclasses import asdict
from pathlib import Path

import numpy as np
from learning import Adam, learn
from policy import Policy
from questions import question

from paragent import RolloutConfig
from paragent.training import Endpoint, Groups, RolloutService

ATTEMPTS = 8
GROUPS_PER_VERSION = 4
MAX_STALENESS = 2


class Checkpoint:
    """The state of the training in one file, and a copy of each version of the policy."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.file = self.folder / "checkpoint.npz"
        if self.file.exists():
            with np.load(self.file) as stored:
                self.record = json.loads(str(stored["record"]))
                state = {name: stored[name] for name in stored.files if name.startswith(("step", "mean", "square"))}
            self.policy = Policy.load(self.version_file(self.record["version"]))
            self.optimizer = Adam(self.policy, state)
        else:
            self.record = {"version": 0, "trained": [], "repeated": [], "steps": [], "error": 0.0}
            self.policy = Policy.load(self.version_file(0))
            self.optimizer = Adam(self.policy)

    def version_file(self, version):
        """Return the file with the weights of a version."""
        return self.folder / f"policy-{version:04}.npz"

    def save(self):
        """Write the checkpoint: the new one is complete, or the old one is still there."""
        self.policy.save(self.version_file(self.policy.version))
        self.record["version"] = self.policy.version
        part = self.file.with_suffix(".part")
        with part.open("wb") as file:
            np.savez(file, record=json.dumps(self.record), **self.optimizer.state)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.file)


def load_into_endpoint(checkpoint, endpoint):
    """Let the endpoint serve the policy of the checkpoint; wait while it is started again."""
    checkpoint.policy.save(checkpoint.folder / "policy.npz")
    url = endpoint.url.removesuffix("/v1") + "/load"
    request = urllib.request.Request(url, b"", {"Authorization": f"Bearer {endpoint.api_key}"})
    deadline = time.monotonic() + 60
    version = None
    while version is None:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                version = json.load(answer)["version"]
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    assert version == checkpoint.policy.version, "the endpoint has loaded another version"


def largest_error(sample, policies):
    """Return how far captured log probabilities are from those of the recorded versions, for the same token ids."""
    errors = [0.0]
    for turn in sample.turns:
        positions = range(turn.start, turn.end)
        again = policies(turn.version).logprobs(sample.token_ids, positions)
        errors.append(float(np.abs(again - sample.logprobs[turn.start : turn.end]).max()))
    return max(errors)


def train(service, checkpoint, batch, endpoint):
    """Learn from some groups, store that, publish the new version, and accept the groups."""
    record = checkpoint.record
    versions = {}

    def policies(version):
        if version not in versions:
            versions[version] = Policy.load(checkpoint.version_file(version))
        return versions[version]

    samples = []
    for group in batch:
        for sample, advantage in zip(group.samples, group.advantages(), strict=True):
            record["error"] = max(record["error"], largest_error(sample, policies))
            samples.append((sample.token_ids, sample.mask, sample.logprobs, advantage))
        record["trained"].append([group.id, len(group.samples)])
    rewards = [reward for group in batch for reward in group.rewards]
    staleness = max(group.staleness for group in batch)
    record["steps"].append([time.time(), len(rewards), sum(rewards), staleness])
    checkpoint.policy = learn(checkpoint.policy, checkpoint.optimizer, samples)
    checkpoint.save()
    service.pause()
    load_into_endpoint(checkpoint, endpoint)
    service.published(checkpoint.policy.version)
    service.resume()
    for group in batch:
        group.accept()


def main():
    """Train until all groups are accepted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url")
    parser.add_argument("--groups", type=int)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    checkpoint = Checkpoint(options.folder)
    trained = {name for name, _ in checkpoint.record["trained"]}
    endpoint = Endpoint(options.url, "policy", os.environ["POLICY_KEY"])
    load_into_endpoint(checkpoint, endpoint)
    config = RolloutConfig(
        mode="math",
        model="policy",
        max_turns=3,
        num_rollouts=32,
        workers=2,
        output_dir=options.folder,
        run_name="rollouts",
    )
    service = RolloutService(
        config,
        endpoint,
        Groups(n=ATTEMPTS, max_failures=100),
        max_staleness=MAX_STALENESS,
        groups_per_version=GROUPS_PER_VERSION,
        version=checkpoint.policy.version,
    )
    with service:
        service.add([question(number, options.seed) for number in range(options.groups)])
        batch = []
        for group in service.groups():
            if group.id in trained:
                checkpoint.record["repeated"].append(group.id)
                group.accept()
                continue
            batch.append(group)
            if len(batch) == GROUPS_PER_VERSION:
                train(service, checkpoint, batch, endpoint)
                batch = []
        if batch:
            train(service, checkpoint, batch, endpoint)
        checkpoint.record["status"] = asdict(service.status())
        checkpoint.save()


if __name__ == "__main__":
    main()

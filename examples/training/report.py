"""The report of a training: a table that says whether each group was trained exactly once, and the learning curve."""

import json
from collections import Counter

import numpy as np

COLOURS = {"worker": "#5b8def", "endpoint": "#e0a030", "trainer": "#d0454c"}


def read_record(folder):
    """Return the record of the last checkpoint."""
    file = folder / "checkpoint.npz"
    if not file.exists():
        return {"version": 0}
    with np.load(file) as stored:
        return json.loads(str(stored["record"]))


def print_report(record, groups, begin, kills):
    """Print the table; return whether all checks hold."""
    times, rollouts, rewards, staleness = zip(*record["steps"], strict=True)
    trained = Counter(name for name, _ in record["trained"])
    samples = sum(number for _, number in record["trained"])
    status = record["status"]
    third = max(1, len(rollouts) // 3)
    first, last = (
        sum(rewards[part]) / sum(rollouts[part]) for part in (slice(0, third), slice(len(rollouts) - third, None))
    )
    killed = Counter(kind for _, kind in kills)
    owed = status["accepted"] + status["delivered"] + status["finished"] + status["under_way"] + status["waiting"]
    checks = {
        "groups owed, trained": (f"{owed}, {len(trained)}", owed == len(trained) == groups),
        "groups trained twice": (len(record["trained"]) - len(trained), max(trained.values()) == 1),
        "groups accepted": (status["accepted"], status["accepted"] == groups),
        "groups dropped": (status["dropped"], status["dropped"] == 0),
        "rollouts owed, trained": (f"{groups * 8}, {sum(rollouts)}", sum(rollouts) == groups * 8),
        "samples trained": (samples, samples >= sum(rollouts)),
        "largest error of a log probability": (f"{record['error']:.1e}", record["error"] < 1e-6),
        "mean reward, first and last third": (f"{first:.2f}, {last:.2f}", last > first),
    }
    facts = {
        "seconds": f"{times[-1] - begin:.0f}",
        "versions of the policy": record["version"],
        "largest staleness": max(staleness),
        "killed": ", ".join(f"{killed[kind]} x {kind}" for kind in COLOURS) if kills else "nothing",
        "groups delivered again after training": len(record["repeated"]),
    }
    for name, value in facts.items():
        print(f"{name:40} {value!s:>24}")
    for name, (value, holds) in checks.items():
        print(f"{name:40} {value!s:>24}  {'ok' if holds else 'WRONG'}")
    return all(holds for _, holds in checks.values())


def write_plot(path, record, begin, kills):
    """Write the learning curve, with a mark for each killed process."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    times, rollouts, rewards, _ = (np.array(column) for column in zip(*record["steps"], strict=True))
    trained, each = rollouts.cumsum(), rewards / rollouts
    smooth = [each[max(0, end - 6) : end + 7].mean() for end in range(len(each))]
    figure, axes = plt.subplots(figsize=(8, 4), dpi=150, layout="constrained")
    axes.plot(trained, each, ".", color="#c3c8d0", markersize=4, label=f"one version ({rollouts[0]} rollouts)")
    axes.plot(trained, smooth, color="#1f6f54", linewidth=2.4, label="mean of 13 versions")
    for kind, colour in COLOURS.items():
        at = [np.interp(when, times, trained) for when, what in kills if what == kind]
        if at:
            axes.plot(at, [-0.06] * len(at), "|", color=colour, markersize=9, markeredgewidth=2, label=f"{kind} killed")
    title = f"{trained[-1]:,} rollouts in {times[-1] - begin:.0f} s"
    title += f", {len(kills)} processes killed" if kills else ""
    axes.set_title(title, loc="left", fontsize=10)
    axes.set(xlabel="rollouts trained", ylabel="mean reward", ylim=(-0.1, 1.05), xlim=(0, trained[-1] * 1.01))
    axes.grid(axis="y", color="#e6e8ec")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.1), fontsize=9)
    figure.savefig(path)

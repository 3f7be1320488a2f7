"""What a user may want to do, what each purpose needs, and whether this host is ready for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paragent._installation import install_command
from paragent.cli.doctor.cures import install_programs
from paragent.cli.doctor.probes import EXTRA

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from paragent.cli.doctor.findings import Finding

__all__ = ["CORE", "GROUPS", "PURPOSES", "Purpose", "Readiness", "judge", "probes_of"]

CORE = "tasks"
"""The purpose without which nothing works."""


@dataclass(frozen=True, slots=True)
class Purpose:
    """Something that a user may want to do."""

    name: str
    group: str
    about: str
    needs: tuple[str, ...] = ()
    """Probes that must succeed."""
    uses: tuple[str, ...] = ()
    """Probes of what is useful and can be missing."""
    one_of: tuple[str, ...] = ()
    """Other purposes of which at least one must be ready."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether this host is ready for a purpose."""

    purpose: Purpose
    ready: bool
    needed: tuple[Finding, ...]
    useful: tuple[Finding, ...]
    chosen: str
    """Which of `one_of` is ready; empty if there is none."""
    cure: str
    """The command that installs what is missing; empty if nothing is missing or no command helps."""


GROUPS = {
    "tasks": "Tasks on this machine",
    "remote-agents": "Remote agents",
    "rollouts": "Rollouts",
    "desktops": "Desktops and OSWorld",
    "clusters": "Ray and Spark",
    "results": "Looking at runs",
    "own-agents": "Own agents in rollouts",
    "training": "Training",
    "providers": "Machines of other providers",
    "more": "Data, protocols, telemetry",
}
"""Groups of purposes, in the order in which they are shown."""
PURPOSES = {
    purpose.name: purpose
    for purpose in (
        Purpose("tasks", "tasks", "Runners in worker processes", ("worker",)),
        Purpose("remote-agents", "remote-agents", "to_dist=True, paragent agent-server", ("remote agent",)),
        Purpose("math", "rollouts", "--mode math", (f"{EXTRA}math",)),
        Purpose("py", "rollouts", "--mode py", ("sandbox of py",)),
        Purpose("rag", "rollouts", "--mode rag", (f"{EXTRA}rag",)),
        Purpose("web", "rollouts", "--mode web", (f"{EXTRA}web", "Chromium")),
        Purpose("model", "rollouts", "--model NAME; `--model demo` needs nothing", (f"{EXTRA}rollout", "key")),
        Purpose("osworld", "desktops", "--mode osworld", (f"{EXTRA}osworld",), one_of=("qemu", "desktop")),
        Purpose(
            "qemu",
            "desktops",
            "--provider-name qemu, the default",
            (f"{EXTRA}qemu", "QEMU", "qemu-img", "network", "image"),
            ("KVM",),
        ),
        Purpose("desktop", "desktops", "--provider-name process", ("desktop",)),
        Purpose("ray", "clusters", "--engine ray", ("Ray",)),
        Purpose("spark", "clusters", "--engine spark", ("Spark", "Java")),
        Purpose("view", "results", "paragent view", ("view",)),
        Purpose(
            "own-agents", "own-agents", "--agent 'cmd: ...' in a sandbox", (f"{EXTRA}rollout", "sandbox of programs")
        ),
        Purpose("mcp", "own-agents", "--mcp-config", (f"{EXTRA}mcp",)),
        Purpose("training", "training", "RolloutService, paragent training serve", (f"{EXTRA}training",)),
        Purpose("docker", "providers", "--provider-name docker", ("docker",)),
        Purpose("aws", "providers", "--provider-name aws", (f"{EXTRA}aws",), ("AWS credentials",)),
        Purpose("vmware", "providers", "--provider-name vmware", ("vmrun",)),
        Purpose("virtualbox", "providers", "--provider-name virtualbox", ("VBoxManage",)),
        Purpose("anthropic", "more", "--api anthropic", (f"{EXTRA}anthropic", "key of Anthropic")),
        Purpose("parquet", "more", "Parquet and Arrow files", (f"{EXTRA}parquet",)),
        Purpose("hf", "more", "--data hf:NAME", (f"{EXTRA}hf",)),
        Purpose("otel", "more", "--otel", (f"{EXTRA}otel",)),
    )
}


def probes_of(purposes: Iterable[Purpose]) -> list[str]:
    """Return the names of the probes that purposes need."""
    names: dict[str, None] = {}
    for purpose in purposes:
        names |= dict.fromkeys((*purpose.needs, *purpose.uses))
        names |= dict.fromkeys(probes_of(PURPOSES[name] for name in purpose.one_of))
    return list(names)


def judge(purpose: Purpose, findings: Mapping[str, Finding]) -> Readiness:
    """Return whether this host is ready for a purpose.

    Args:
        purpose: the purpose.
        findings: those of all probes of `probes_of`.
    """
    needed = [findings[name] for name in purpose.needs]
    options = [judge(PURPOSES[name], findings) for name in purpose.one_of]
    chosen = next((option.purpose.name for option in options if option.ready), "")
    lacking = [finding for finding in needed if not finding.works]
    if options and not chosen:
        lacking += [finding for finding in options[0].needed if not finding.works]
        needed += [finding for finding in options[0].needed if not finding.works]
    useful = [findings[name] for name in purpose.uses]
    return Readiness(purpose, not lacking, tuple(needed), tuple(useful), chosen, _cure(lacking))


def _cure(findings: Iterable[Finding]) -> str:
    """Return one command for everything that is missing."""
    findings = list(findings)
    programs = [program for finding in findings for program in finding.programs]
    extras = [extra for finding in findings for extra in finding.extras]
    steps = [install_programs(programs)] if programs else []
    steps += [install_command(extras)] if extras else []
    steps += [finding.cure for finding in findings if finding.cure]
    return " && ".join(dict.fromkeys(steps))

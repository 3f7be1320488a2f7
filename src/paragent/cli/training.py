"""`paragent training serve`: rollouts for a trainer in another image."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.signals import signals_end
from paragent.cli.options import add_command
from paragent.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from paragent.cli.options import Subparsers
    from paragent.training import Groups, RolloutService

__all__ = ["add"]

_TOKEN = "PARAGENT_TRAINING_TOKEN"  # noqa: S105 - the name of a variable
_KEY = "PARAGENT_ENDPOINT_KEY"
_POLL_SECONDS = 0.5
_ERROR_SECONDS = 30.0
"""Seconds in which trainers can ask a service that has failed for the reason."""
_OWN = {
    "endpoint": str,
    "n": int,
    "infrastructure": str,
    "max_failures": int,
    "failure_reward": float,
    "max_staleness": int,
    "groups_per_version": int,
}
"""The settings of the service, and their types. They are flags and keys of the configuration file."""
_HELP = {
    "endpoint": "address of the endpoint that serves the policy, such as http://policy:8000/v1",
    "n": "attempts at each task (default: 8)",
    "infrastructure": "replay (the default), drop, or partial:K: what happens if infrastructure failed too often",
    "max_failures": "how often in a row a rollout may fail because of infrastructure (default: 8)",
    "failure_reward": "reward of a rollout whose agent failed or took too long (default: 0)",
    "max_staleness": "versions between the oldest turn of a group and its delivery (default: 4)",
    "groups_per_version": "groups that the trainer takes at least between two versions (default: 1)",
}


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(subparsers, "training", "serve rollouts to a trainer")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    serve = add_command(
        commands,
        "serve",
        "execute rollouts and deliver them over HTTP",
        "Execute rollouts for a trainer and deliver them over HTTP. The file has the settings of "
        f"`paragent rollout` and those below. {_KEY} sets the key of the endpoint, {_TOKEN} the token of the service.",
    )
    serve.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="YAML, TOML or JSON file with settings"
    )
    for name, kind in _OWN.items():
        serve.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=kind.__name__.upper(), help=_HELP[name])
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", type=int, default=0, help="port (default: any free port)")
    serve.add_argument("--token", help=f"token that clients send (default: {_TOKEN}, or else a random one)")
    serve.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM, or until the service ends."""
    try:
        from paragent.training.http_service import TrainingServer
    except ModuleNotFoundError as error:
        raise MissingExtra("`paragent training serve`", "training", str(error.name)) from error
    if not 0 <= options.port < 1 << 16:
        raise ConfigError(f"--port must be from 0 to 65535, not {options.port}")
    started, ended = threading.Event(), threading.Event()
    token = options.token or os.environ.get(_TOKEN)
    with signals_end(started, ended), _service(options) as service:
        started.set()
        with TrainingServer(service, options.host, options.port, token) as server:
            if options.host not in {"127.0.0.1", "localhost", "::1"}:
                print(
                    "paragent: the connection is not encrypted; use a private network or a TLS proxy", file=sys.stderr
                )
            shown = "" if token else f"\ntoken: {server.token}"
            print(f"{server.url}{shown}\nrun: {service.path}\nCtrl-C stops the service.", flush=True)
            while not ended.wait(_POLL_SECONDS) and service.failure is None:
                pass
            if (failure := service.failure) is not None:
                ended.wait(_ERROR_SECONDS)
                raise failure
    return 0


def _service(options: argparse.Namespace) -> RolloutService:
    from paragent.rollout.config import RolloutConfig
    from paragent.rollout.settings_file import read_settings_file
    from paragent.training import Endpoint, RolloutService

    settings = {name.replace("-", "_"): value for name, value in read_settings_file(options.config).items()}
    own = {name: settings.pop(name) for name in _OWN if name in settings}
    own |= {name: getattr(options, name) for name in _OWN if getattr(options, name) is not None}
    if "endpoint" not in own:
        raise ConfigError(
            "--endpoint is missing: the address of the endpoint that serves the policy, as http://127.0.0.1:8000/v1"
        )
    return RolloutService(
        RolloutConfig(**settings),
        Endpoint(str(own.pop("endpoint")), api_key=os.environ.get(_KEY)),
        _groups(own),
        **own,
    )


def _groups(own: dict[str, Any]) -> Groups:
    """Return the settings of groups, and remove them from `own`."""
    from paragent.training import Groups, partial

    names = ("n", "infrastructure", "max_failures", "failure_reward")
    given: Mapping[str, Any] = {name: own.pop(name) for name in names if name in own}
    policy, _, least = str(given.get("infrastructure", "replay")).partition(":")
    if policy == "partial":
        if not least.isdecimal():
            raise ConfigError("--infrastructure partial needs a number, as in partial:4")
        return Groups(**{**given, "infrastructure": partial(min=int(least))})
    return Groups(**given)

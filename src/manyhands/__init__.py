"""manyhands runs agents in parallel, from one laptop to a cluster, with one API.

Everything a user needs imports from here. Names are loaded when they are first used, so `import manyhands` costs a few
milliseconds and a worker process loads only what it runs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyhands.agents import AgentBase, ParallelizableAgent
    from manyhands.agents.chat import ChatAgent
    from manyhands.agents.playing import Played
    from manyhands.config import EngineName, RunConfig
    from manyhands.engines import RuntimeEngine
    from manyhands.engines.inline import InlineRuntime
    from manyhands.engines.local import LocalRuntime
    from manyhands.envs import Environment, ToolFailed, ToolResult, tool
    from manyhands.errors import (
        AgentError,
        BadData,
        ConfigError,
        ContextFull,
        DuplicateTaskId,
        EndpointDown,
        EndpointRefused,
        EngineFailed,
        EnvironmentFailed,
        InfrastructureError,
        Interrupted,
        ManyhandsError,
        MissingExtra,
        MissingProgram,
        RequestRejected,
        RunBusy,
        StoreFailed,
        SubAgentError,
        SubAgentsFailed,
        TaskFailed,
        UnknownName,
        Unserialisable,
        UsageError,
        WorkerLost,
    )
    from manyhands.messages import ActionModel, Msg
    from manyhands.rollout import RolloutConfig, RolloutWorker, run_parallel_rollout
    from manyhands.runners import Progress, Runners, exec_tasks
    from manyhands.tasks import ErrorInfo, Item, Task, TaskResponse, TaskStatus, current_task, record_step, record_usage

_ROOMS = {
    "agents": ("AgentBase", "ParallelizableAgent"),
    "agents.chat": ("ChatAgent",),
    "agents.playing": ("Played",),
    "config": ("EngineName", "RunConfig"),
    "engines": ("RuntimeEngine",),
    "engines.inline": ("InlineRuntime",),
    "engines.local": ("LocalRuntime",),
    "envs": ("Environment", "ToolFailed", "ToolResult", "tool"),
    "errors": (
        "AgentError",
        "BadData",
        "ConfigError",
        "ContextFull",
        "DuplicateTaskId",
        "EndpointDown",
        "EndpointRefused",
        "EngineFailed",
        "EnvironmentFailed",
        "InfrastructureError",
        "Interrupted",
        "ManyhandsError",
        "MissingExtra",
        "MissingProgram",
        "RequestRejected",
        "RunBusy",
        "StoreFailed",
        "SubAgentError",
        "SubAgentsFailed",
        "TaskFailed",
        "UnknownName",
        "Unserialisable",
        "UsageError",
        "WorkerLost",
    ),
    "messages": ("ActionModel", "Msg"),
    "rollout": ("RolloutConfig", "RolloutWorker", "run_parallel_rollout"),
    "runners": ("Progress", "Runners", "exec_tasks"),
    "tasks": ("ErrorInfo", "Item", "Task", "TaskResponse", "TaskStatus", "current_task", "record_step", "record_usage"),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "ActionModel",
    "AgentBase",
    "AgentError",
    "BadData",
    "ChatAgent",
    "ConfigError",
    "ContextFull",
    "DuplicateTaskId",
    "EndpointDown",
    "EndpointRefused",
    "EngineFailed",
    "EngineName",
    "Environment",
    "EnvironmentFailed",
    "ErrorInfo",
    "InfrastructureError",
    "InlineRuntime",
    "Interrupted",
    "Item",
    "LocalRuntime",
    "ManyhandsError",
    "MissingExtra",
    "MissingProgram",
    "Msg",
    "ParallelizableAgent",
    "Played",
    "Progress",
    "RequestRejected",
    "RolloutConfig",
    "RolloutWorker",
    "RunBusy",
    "RunConfig",
    "Runners",
    "RuntimeEngine",
    "StoreFailed",
    "SubAgentError",
    "SubAgentsFailed",
    "Task",
    "TaskFailed",
    "TaskResponse",
    "TaskStatus",
    "ToolFailed",
    "ToolResult",
    "UnknownName",
    "Unserialisable",
    "UsageError",
    "WorkerLost",
    "current_task",
    "exec_tasks",
    "record_step",
    "record_usage",
    "run_parallel_rollout",
    "tool",
]


def __getattr__(name: str) -> Any:
    room = _HOME.get(name)
    if room is None:
        raise AttributeError(f"module 'manyhands' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"manyhands.{room}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

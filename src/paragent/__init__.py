"""paragent runs agents in parallel, from one laptop to a cluster, with one API.

Everything a user needs imports from here. Names are loaded when they are first used, so `import paragent` costs a few
milliseconds and a worker process loads only what it runs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paragent.agents import AgentBase, ParallelizableAgent
    from paragent.agents.chat import AgentResult, ChatAgent
    from paragent.agents.proxy import RpcAgent
    from paragent.config import EngineName, RunConfig, init
    from paragent.engines import RuntimeEngine
    from paragent.engines.inline import InlineRuntime
    from paragent.engines.local import LocalRuntime
    from paragent.engines.ray import RayRuntime
    from paragent.engines.spark import SparkRuntime
    from paragent.envs import Environment, Tool, ToolFailed, ToolResult, tool
    from paragent.errors import (
        AccessDenied,
        AgentError,
        AgentStopped,
        BadData,
        CallCancelled,
        CallTimedOut,
        ConfigError,
        ContextFull,
        DuplicateTaskId,
        EndpointDown,
        EndpointRefused,
        EngineFailed,
        EnvironmentFailed,
        InfrastructureError,
        Interrupted,
        LeaseLost,
        LeaseTimeout,
        LimitExceeded,
        MachineFailed,
        MissingExtra,
        MissingProgram,
        ParagentError,
        PoolFailed,
        PoolStopped,
        ProtocolError,
        RemoteError,
        RequestRejected,
        RunBusy,
        ServerLost,
        StoreFailed,
        SubAgentError,
        SubAgentsFailed,
        TaskFailed,
        ToolsUnsupported,
        TurnsUsedUp,
        UnknownName,
        Unserialisable,
        UsageError,
        WorkerLost,
    )
    from paragent.machines import Lease, Machine, MachineSettings, MachineState, PoolClient, VMPoolManager
    from paragent.messages import ActionModel, Msg
    from paragent.models import Completion, Model, ModelSettings
    from paragent.remote import DistConf, concurrent
    from paragent.remote.client.result import Result, wait
    from paragent.remote.client.stream import RemoteStream
    from paragent.remote.launcher import RpcAgentServerLauncher
    from paragent.rollout import RolloutConfig, RolloutWorker, run_parallel_rollout
    from paragent.runners import Progress, Runners, exec_tasks
    from paragent.scorers import Score, Scorer
    from paragent.tasks import (
        BenchmarkTask,
        ErrorInfo,
        Task,
        TaskResponse,
        TaskStatus,
        current_task,
        record_step,
        record_usage,
    )
    from paragent.transport import Limits, TlsConf

_ROOMS = {
    "agents": ("AgentBase", "ParallelizableAgent"),
    "agents.chat": ("AgentResult", "ChatAgent"),
    "agents.proxy": ("RpcAgent",),
    "config": ("EngineName", "RunConfig", "init"),
    "engines": ("RuntimeEngine",),
    "engines.inline": ("InlineRuntime",),
    "engines.local": ("LocalRuntime",),
    "engines.ray": ("RayRuntime",),
    "engines.spark": ("SparkRuntime",),
    "envs": ("Environment", "Tool", "ToolFailed", "ToolResult", "tool"),
    "errors": (
        "AccessDenied",
        "AgentError",
        "AgentStopped",
        "BadData",
        "CallCancelled",
        "CallTimedOut",
        "ConfigError",
        "ContextFull",
        "DuplicateTaskId",
        "EndpointDown",
        "EndpointRefused",
        "EngineFailed",
        "EnvironmentFailed",
        "InfrastructureError",
        "Interrupted",
        "LeaseLost",
        "LeaseTimeout",
        "LimitExceeded",
        "MachineFailed",
        "ParagentError",
        "MissingExtra",
        "MissingProgram",
        "PoolFailed",
        "PoolStopped",
        "ProtocolError",
        "RemoteError",
        "RequestRejected",
        "RunBusy",
        "ServerLost",
        "StoreFailed",
        "SubAgentError",
        "SubAgentsFailed",
        "TaskFailed",
        "TurnsUsedUp",
        "ToolsUnsupported",
        "UnknownName",
        "Unserialisable",
        "UsageError",
        "WorkerLost",
    ),
    "messages": ("ActionModel", "Msg"),
    "models": ("Completion", "Model", "ModelSettings"),
    "scorers": ("Score", "Scorer"),
    "remote": ("DistConf", "concurrent"),
    "remote.client.result": ("Result", "wait"),
    "remote.client.stream": ("RemoteStream",),
    "remote.launcher": ("RpcAgentServerLauncher",),
    "rollout": ("RolloutConfig", "RolloutWorker", "run_parallel_rollout"),
    "transport": ("Limits", "TlsConf"),
    "runners": ("Progress", "Runners", "exec_tasks"),
    "tasks": (
        "ErrorInfo",
        "BenchmarkTask",
        "Task",
        "TaskResponse",
        "TaskStatus",
        "current_task",
        "record_step",
        "record_usage",
    ),
    "machines": ("Lease", "Machine", "MachineSettings", "MachineState", "PoolClient", "VMPoolManager"),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "AccessDenied",
    "ActionModel",
    "AgentBase",
    "AgentError",
    "AgentResult",
    "AgentStopped",
    "BadData",
    "BenchmarkTask",
    "CallCancelled",
    "CallTimedOut",
    "ChatAgent",
    "Completion",
    "ConfigError",
    "ContextFull",
    "DistConf",
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
    "Lease",
    "LeaseLost",
    "LeaseTimeout",
    "LimitExceeded",
    "Limits",
    "LocalRuntime",
    "Machine",
    "MachineFailed",
    "MachineSettings",
    "MachineState",
    "MissingExtra",
    "MissingProgram",
    "Model",
    "ModelSettings",
    "Msg",
    "ParagentError",
    "ParallelizableAgent",
    "PoolClient",
    "PoolFailed",
    "PoolStopped",
    "Progress",
    "ProtocolError",
    "RayRuntime",
    "RemoteError",
    "RemoteStream",
    "RequestRejected",
    "Result",
    "RolloutConfig",
    "RolloutWorker",
    "RpcAgent",
    "RpcAgentServerLauncher",
    "RunBusy",
    "RunConfig",
    "Runners",
    "RuntimeEngine",
    "Score",
    "Scorer",
    "ServerLost",
    "SparkRuntime",
    "StoreFailed",
    "SubAgentError",
    "SubAgentsFailed",
    "Task",
    "TaskFailed",
    "TaskResponse",
    "TaskStatus",
    "TlsConf",
    "Tool",
    "ToolFailed",
    "ToolResult",
    "ToolsUnsupported",
    "TurnsUsedUp",
    "UnknownName",
    "Unserialisable",
    "UsageError",
    "VMPoolManager",
    "WorkerLost",
    "concurrent",
    "current_task",
    "exec_tasks",
    "init",
    "record_step",
    "record_usage",
    "run_parallel_rollout",
    "tool",
    "wait",
]


def __getattr__(name: str) -> Any:
    room = _HOME.get(name)
    if room is None:
        raise AttributeError(f"module 'paragent' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"paragent.{room}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

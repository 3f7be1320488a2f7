"""paragent runs agents in parallel, from one laptop to a cluster, with one API.

All public names can be imported from here. A name is loaded when it is first used, so `import paragent` takes a few
milliseconds and a worker process loads only what it executes. The contract suites are in `paragent.testing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent import errors
from paragent._internal.lazy import names_from
from paragent.errors import *  # noqa: F403 - every error is public

if TYPE_CHECKING:
    from paragent._internal.version import __version__
    from paragent.agents import AgentBase, ParallelizableAgent
    from paragent.agents.chat import AgentResult, ChatAgent, Episode
    from paragent.agents.proxy import RpcAgent
    from paragent.config import EngineName, RunConfig, init
    from paragent.engines import Call, RuntimeEngine
    from paragent.engines.inline import InlineRuntime
    from paragent.engines.local import LocalRuntime
    from paragent.engines.ray import RayRuntime
    from paragent.engines.spark import SparkRuntime
    from paragent.envs import AgentFactory, Environment, LoadedTask, SharedResources, Tool, ToolFailed, ToolResult, tool
    from paragent.execution import Ending, Outcome, current_task, record_step, record_usage
    from paragent.machines import (
        CommandResult,
        GuestReply,
        Lease,
        Machine,
        MachineSettings,
        MachineState,
        MachineStatus,
        Owner,
        PoolClient,
        PoolStatus,
        Provider,
        RequestBody,
        VMPoolManager,
        complete_or_undo,
    )
    from paragent.messages import ActionModel, Msg
    from paragent.models import Completion, Model, ModelSettings
    from paragent.remote import DistConf, concurrent
    from paragent.remote.launcher import RpcAgentServerLauncher
    from paragent.remote.result import Result
    from paragent.remote.stream import RemoteStream
    from paragent.remote.waiting import as_completed, wait
    from paragent.rollout import (
        AgentSection,
        DataSection,
        EnvironmentSection,
        MachinesSection,
        ModelSection,
        RolloutConfig,
        RolloutProgress,
        RolloutWorker,
        RunSection,
        run_parallel_rollout,
    )
    from paragent.runners import Progress, Runners, exec_tasks
    from paragent.scorers import Score, Scorer
    from paragent.store import RolloutResult, RolloutStatus, Summary
    from paragent.tasks import BenchmarkTask, ErrorInfo, Task, TaskResponse, TaskStatus
    from paragent.transport import Limits, TlsConf

_MODULES = {
    "_internal.version": ("__version__",),
    "agents": ("AgentBase", "ParallelizableAgent"),
    "agents.chat": ("AgentResult", "ChatAgent", "Episode"),
    "agents.proxy": ("RpcAgent",),
    "config": ("EngineName", "RunConfig", "init"),
    "engines": ("Call", "RuntimeEngine"),
    "engines.inline": ("InlineRuntime",),
    "engines.local": ("LocalRuntime",),
    "engines.ray": ("RayRuntime",),
    "engines.spark": ("SparkRuntime",),
    "envs": (
        "AgentFactory",
        "Environment",
        "LoadedTask",
        "SharedResources",
        "Tool",
        "ToolFailed",
        "ToolResult",
        "tool",
    ),
    "execution": ("Ending", "Outcome", "current_task", "record_step", "record_usage"),
    "machines": (
        "CommandResult",
        "GuestReply",
        "Lease",
        "Machine",
        "MachineSettings",
        "MachineState",
        "MachineStatus",
        "Owner",
        "PoolClient",
        "PoolStatus",
        "Provider",
        "RequestBody",
        "VMPoolManager",
        "complete_or_undo",
    ),
    "messages": ("ActionModel", "Msg"),
    "models": ("Completion", "Model", "ModelSettings"),
    "remote": ("DistConf", "concurrent"),
    "remote.launcher": ("RpcAgentServerLauncher",),
    "remote.result": ("Result",),
    "remote.stream": ("RemoteStream",),
    "remote.waiting": ("as_completed", "wait"),
    "rollout": (
        "AgentSection",
        "DataSection",
        "EnvironmentSection",
        "MachinesSection",
        "ModelSection",
        "RolloutConfig",
        "RolloutProgress",
        "RolloutWorker",
        "RunSection",
        "run_parallel_rollout",
    ),
    "runners": ("Progress", "Runners", "exec_tasks"),
    "scorers": ("Score", "Scorer"),
    "store": ("RolloutResult", "RolloutStatus", "Summary"),
    "tasks": ("BenchmarkTask", "ErrorInfo", "Task", "TaskResponse", "TaskStatus"),
    "transport": ("Limits", "TlsConf"),
}
"""The module of each public name. Errors are not in it: `paragent.errors` is small and imported at once."""

__all__ = [
    "ActionModel",
    "AgentBase",
    "AgentFactory",
    "AgentResult",
    "AgentSection",
    "BenchmarkTask",
    "Call",
    "ChatAgent",
    "CommandResult",
    "Completion",
    "DataSection",
    "DistConf",
    "Ending",
    "EngineName",
    "Environment",
    "EnvironmentSection",
    "Episode",
    "ErrorInfo",
    "GuestReply",
    "InlineRuntime",
    "Lease",
    "Limits",
    "LoadedTask",
    "LocalRuntime",
    "Machine",
    "MachineSettings",
    "MachineState",
    "MachineStatus",
    "MachinesSection",
    "Model",
    "ModelSection",
    "ModelSettings",
    "Msg",
    "Outcome",
    "Owner",
    "ParallelizableAgent",
    "PoolClient",
    "PoolStatus",
    "Progress",
    "Provider",
    "RayRuntime",
    "RemoteStream",
    "RequestBody",
    "Result",
    "RolloutConfig",
    "RolloutProgress",
    "RolloutResult",
    "RolloutStatus",
    "RolloutWorker",
    "RpcAgent",
    "RpcAgentServerLauncher",
    "RunConfig",
    "RunSection",
    "Runners",
    "RuntimeEngine",
    "Score",
    "Scorer",
    "SharedResources",
    "SparkRuntime",
    "Summary",
    "Task",
    "TaskResponse",
    "TaskStatus",
    "TlsConf",
    "Tool",
    "ToolFailed",
    "ToolResult",
    "VMPoolManager",
    "__version__",
    "as_completed",
    "complete_or_undo",
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
__all__ += errors.__all__

__getattr__ = names_from(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The keyword arguments of `RolloutConfig`, for type checkers and editors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from paragent.rollout.config import (
        AgentSection,
        DataSection,
        EnvironmentSection,
        MachinesSection,
        ModelSection,
        RunSection,
    )

__all__ = ["RolloutKeywords"]


class RolloutKeywords(TypedDict, total=False):
    """The settings by their flat names, and the sections. `data`, `agent` and `model` are both."""

    environment: EnvironmentSection | Mapping[str, Any]
    machines: MachinesSection | Mapping[str, Any]
    run: RunSection | Mapping[str, Any]
    data: str | PathLike[str] | DataSection | Mapping[str, Any] | None
    data_field: Mapping[str, Any]
    limit: int | None
    task_id: Sequence[str]
    attempts: int
    skip_unsupported: bool
    agent: str | AgentSection | Mapping[str, Any] | None
    agent_in: str | None
    agent_env: Mapping[str, Any]
    agent_network: str
    agent_hosted_tools: bool
    agent_metadata: Sequence[str]
    max_turns: int
    mcp_config: str | PathLike[str] | None
    mcp_timeout: float | str
    model: str | ModelSection | Mapping[str, Any]
    max_retries: int
    request_timeout: float | str | None
    stall_timeout: float | str
    api: str
    temperature: float | None
    top_p: float | None
    seed: int | None
    max_reply_tokens: int | None
    reasoning_effort: str | None
    stop: Sequence[str]
    extra_body: Mapping[str, Any]
    token_ids: bool
    stream: bool
    cache: bool
    cache_dir: str | PathLike[str] | None
    tool_format: str
    prices: str | PathLike[str] | None
    mode: str
    env: str | None
    env_option: Mapping[str, Any]
    metric: str | None
    judge_model: str | None
    kb: str | PathLike[str] | None
    sandbox: str | None
    action_space: str
    observation_type: str
    pause: float | str
    record: bool
    num_vms: int
    use_vm_pool: bool
    num_spares: int | None
    pool_address: str | None
    tls_ca: str | PathLike[str] | None
    tls_cert: str | PathLike[str] | None
    tls_key: str | PathLike[str] | None
    tls_server_name: str | None
    pause_machines: bool
    path_to_vm: str | PathLike[str] | None
    provider_name: str | None
    vm_memory: int | None
    vm_cores: int | None
    vm_option: Mapping[str, Any]
    region: str | None
    screen_width: int
    screen_height: int
    headless: bool
    snapshot_name: str | None
    client_password: str
    num_rollouts: int
    engine: str
    engine_address: str | None
    engine_option: Mapping[str, Any]
    host: str | None
    workers: int | None
    isolate: bool
    timeout: float | str | None
    output_dir: str | PathLike[str]
    run_name: str | None
    retry_failed: bool
    give_up_after: int
    max_cost: float | None
    max_tokens: int | None
    max_time: float | str | None
    at_limit: str
    fresh: bool
    otel: bool
    otel_content: bool

"""The settings of the models of a run: the agent's and the judge's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paragent._internal.registry import require_extra
from paragent.errors import ConfigError
from paragent.models import ModelSettings, Sampling
from paragent.models.base import APIS, MODELS, REQUEST_TIMEOUT
from paragent.models.cache import ReplyCache
from paragent.models.credentials import check_address, endpoint_from_environment, no_key, variables
from paragent.models.tokens import TOKEN_IDS

if TYPE_CHECKING:
    from paragent.rollout.config import ModelSection, RolloutConfig

__all__ = ["judge_settings", "model_settings"]


def model_settings(
    config: RolloutConfig, name: str, concurrency: int, endpoint: tuple[str, str] | None = None
) -> ModelSettings:
    """Return the settings of a model of the run, after checking its address, its key and its packages.

    Args:
        config: the settings of the run.
        name: the name of the model.
        concurrency: the most concurrent requests of a worker.
        endpoint: the address and the key; None: those of the environment variables.

    Raises:
        UsageError: the model cannot be used; the message says what to change.
    """
    built_in = name in MODELS.names()  # such a model may need no endpoint
    try:
        url, key = endpoint or endpoint_from_environment(Path.cwd(), config.model.api)
    except ConfigError:
        if not built_in:
            raise
        url = key = None
    if not built_in and not key:
        raise ConfigError(no_key(config.model.api))
    if not built_in and url:
        check_address(url, "endpoint" if endpoint else variables(config.model.api)[0])
    if not built_in and config.model.api == "chat":
        require_extra("the API 'chat'", extra="rollout", package="openai")  # not imported: it takes a second
    elif not built_in:
        APIS.load(config.model.api)  # its optional packages may be missing
    model = config.model
    return ModelSettings(
        name=name,
        base_url=url,
        api_key=key,
        max_retries=model.max_retries,
        request_timeout=model.request_timeout or REQUEST_TIMEOUT,
        stall_timeout=model.stall_timeout,
        max_concurrency=concurrency,
        sampling=_sampling(model),
        api=model.api,
        tool_format=model.tool_format,
        stream=model.stream,
        hosted_tools=config.agent.hosted_tools,
        cache=_cache_folder(config),
    )


def judge_settings(config: RolloutConfig, model: ModelSettings) -> ModelSettings:
    """Return the settings of the judge. The sampling settings of the run are those of the agent's model: a stop text or a
    limit of a reply that suits the agent would spoil the judge's reply."""
    judge = config.environment.judge_model
    return replace(model_settings(config, judge, model.max_concurrency) if judge else model, sampling=Sampling())


def _cache_folder(config: RolloutConfig) -> str | None:
    """Return the folder of the cache of replies, after checking that it can be used.

    Raises:
        ConfigError: it cannot.
    """
    if not config.model.cache:
        return None
    from paragent.machines.cleanup import cache_folder

    folder = (config.model.cache_dir or cache_folder("replies")).resolve()
    ReplyCache(folder).close()
    return str(folder)


def _sampling(model: ModelSection) -> Sampling:
    return Sampling(
        temperature=model.temperature,
        top_p=model.top_p,
        seed=model.seed,
        max_tokens=model.max_tokens,
        reasoning_effort=model.reasoning_effort,
        stop=tuple(model.stop),
        extra_body=(TOKEN_IDS if model.token_ids else {}) | model.extra_body,
    )

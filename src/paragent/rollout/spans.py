"""Spans of OpenTelemetry, made from the records of a run: no I/O, and no import of opentelemetry.

One execution becomes a tree, which is sent as a trace: `invoke_agent`, its turns, and in each turn `chat MODEL` and
`execute_tool NAME`. Names and attributes are those of the GenAI semantic conventions; all other attributes begin with
`paragent.`. Texts of models, tools, agents and tasks are contents; spans have them only on request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from paragent.models.base import MODELS
from paragent.models.credentials import default_url
from paragent.rollout.blame import party_of
from paragent.rollout.live_status import TokenUsage, usage_of
from paragent.rollout.span_contents import Conversation, cut, tool_names
from paragent.store.records import error_summary
from paragent.tasks import ANSWERED, CUT_ENDINGS, TURNS_USED_UP

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from paragent.rollout.prepare import RolloutPlan
    from paragent.store import RolloutResult

__all__ = ["Attribute", "ExecutionSpans", "SessionTotals", "Span", "TracedRun"]

Attribute = str | bool | int | float | list[str]

_LONGEST = 256
"""Characters of an id or a name that comes from an endpoint or an agent."""
_UNKNOWN = "_OTHER"
"""The conventions' value for an unknown type. It also replaces the name of a tool that the environment does not have: the model
wrote that name, so it is content."""
_TOOL_ERROR = "tool_error"
"""The `error.type` of a tool call whose result is an error."""
_ENDINGS = frozenset({ANSWERED, TURNS_USED_UP, *CUT_ENDINGS})
"""Endings of paragent's own agents. Other endings are texts of agents and count as contents."""
_PROVIDERS = {
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "api.anthropic.com": "anthropic",
    "api.cohere.ai": "cohere",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.moonshot.ai": "moonshot_ai",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "openai.azure.com": "azure.ai.openai",
}
"""Values of `gen_ai.provider.name` by the end of the host's name. Other endpoints are `openai`: they have its protocol."""


@dataclass(slots=True)
class Span:
    """One span with its children. Times are seconds since the epoch."""

    name: str
    start: float
    end: float
    attributes: dict[str, Attribute]
    client: bool = False
    """Whether it is a request to another service."""
    error: str = ""
    """The message of the error status; empty without an error or if contents are left out."""
    scores: dict[str, float] = field(default_factory=dict)
    """The scores by scorer; each is an event `gen_ai.evaluation.result`."""
    children: list[Span] = field(default_factory=list)

    def count(self) -> int:
        """Return the number of spans of the tree."""
        return 1 + sum(child.count() for child in self.children)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRun:
    """What all spans of one session have in common."""

    run_id: str
    """Identifies the run in all its sessions."""
    run_name: str
    session: int
    environment: str
    engine: str
    agent: str
    model: str
    provider: str
    server: dict[str, Attribute]
    """`server.address` and `server.port` of the endpoint; empty for a model without an endpoint."""
    request: dict[str, Attribute]
    """The parameters of all requests."""

    @classmethod
    def of(cls, plan: RolloutPlan, run_id: str, session: int) -> TracedRun:
        """Return the description of a session of a planned run."""
        config, model = plan.config, plan.settings.model
        built_in = model.name in MODELS.names()
        address = urlsplit(model.base_url or default_url(model.api))
        host = address.hostname or ""
        found = (name for end, name in _PROVIDERS.items() if host == end or host.endswith(f".{end}"))
        port = address.port or {"http": 80, "https": 443}.get(address.scheme, 0)
        request = {
            "gen_ai.request.temperature": model.sampling.temperature,
            "gen_ai.request.top_p": model.sampling.top_p,
            "gen_ai.request.seed": model.sampling.seed,
            "gen_ai.request.max_tokens": model.sampling.max_tokens,
            "gen_ai.request.stream": model.stream or None,
        }
        return cls(
            run_id=run_id,
            run_name=plan.path.name,
            session=session,
            environment=config.environment.env or config.environment.mode,
            engine=config.run.engine,
            agent=(config.agent.location or "ChatAgent").rpartition(":")[2],
            model=model.name,
            provider="paragent" if built_in else next(found, "openai"),
            server={} if built_in or not host else {"server.address": host, "server.port": port},
            request=_given(request),
        )

    @property
    def identity(self) -> dict[str, Attribute]:
        """The attributes of the session and of its executions."""
        return {
            "paragent.run.id": self.run_id,
            "paragent.run.name": self.run_name,
            "paragent.session.number": self.session,
        }

    def session_attributes(self) -> dict[str, Attribute]:
        """Return the attributes of the span of the session."""
        return self.identity | {
            "paragent.environment": self.environment,
            "paragent.engine": self.engine,
            "gen_ai.agent.name": self.agent,
            "gen_ai.provider.name": self.provider,
            "gen_ai.request.model": self.model,
        }


@dataclass(slots=True)
class SessionTotals:
    """Totals of the results that a session recorded."""

    rollouts: int = 0
    """Final results."""
    executions: int = 0
    scored: int = 0
    """Results that count in the mean score, as in `Summary.mean`."""
    score: float = 0.0
    """The sum of their scores."""
    tokens: TokenUsage = field(default_factory=TokenUsage)

    def count(self, result: RolloutResult) -> None:
        """Count a result."""
        self.executions += 1
        self.tokens += usage_of(result)
        if result.final:
            self.rollouts += 1
            if result.is_measured:
                self.scored += 1
                self.score += result.score or 0.0

    def attributes(self) -> dict[str, Attribute]:
        """Return the attributes of the session's span. Tokens have names of their own, so that sums do not count them twice."""
        return _given(
            {
                "paragent.rollouts": self.rollouts,
                "paragent.executions": self.executions,
                "paragent.score.mean": self.score / self.scored if self.scored else None,
                "paragent.tokens.input": self.tokens.prompt,
                "paragent.tokens.output": self.tokens.completion,
            }
        )


class ExecutionSpans:
    """Makes the spans of executions.

    Args:
        run: what the spans have in common.
        content: whether spans have contents: messages, arguments and results of tools, answers, error messages.
    """

    def __init__(self, run: TracedRun, *, content: bool) -> None:
        self._run = run
        self._content = content

    def execution(self, result: RolloutResult) -> Span:
        """Return the span of an execution, without its turns and contents."""
        end = result.ended
        start = min(result.started or end - result.seconds - result.waited, end)
        span = Span(f"invoke_agent {self._run.agent}", start, end, self._execution_attributes(result))
        span.scores = {name: value for name, value in result.scores.items() if value is not None}
        if result.kind and self._content:
            span.error = cut(error_summary(result.error), _LONGEST)
        return span

    def add_steps(self, execution: Span, result: RolloutResult, trajectory: Any) -> None:
        """Add the turns, model calls and tool calls of a trajectory to the span of its execution, and the contents of all.

        Children lie within their parent: times of a step that the records put outside the execution are moved to its border.
        """
        recorded = _mapping(trajectory)
        conversation = Conversation(recorded) if self._content else None
        if conversation is not None:
            execution.attributes |= conversation.of_execution(result.answer)
        tools = tool_names(recorded)
        for step in _steps(recorded):
            made = self._add_step(execution, step, tools)
            if conversation is not None:
                contents = conversation.of_step(step)
                if made is not None:
                    made.attributes |= contents

    def _add_step(self, execution: Span, step: Mapping[str, Any], tools: Collection[str]) -> Span | None:
        """Add the span of a model call or tool call below its turn, and that of a judge's call below the execution.

        Other steps, such as the machine's, have no span. A message that the agent made by itself is a turn without calls.
        """
        kind, turn = step.get("kind"), _whole(step.get("turn"))
        if turn is None or kind not in ("model", "judge", "tool", "agent"):
            return None
        start = min(max(execution.start + _seconds(step.get("at")), execution.start), execution.end)
        end = min(start + _seconds(step.get("seconds")), execution.end)
        parent = execution if kind == "judge" else _turn_span(execution, turn, start, end)
        if kind == "agent":
            return None
        span = self._tool_call(step, execution, tools) if kind == "tool" else self._model_call(step, execution)
        span.start, span.end = start, end
        parent.children.append(span)
        return span

    def _execution_attributes(self, result: RolloutResult) -> dict[str, Attribute]:
        run = self._run
        attributes = run.identity | {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": run.provider,
            "gen_ai.agent.name": run.agent,
            "gen_ai.request.model": run.model,
            "gen_ai.conversation.id": f"{run.run_id}/{result.number}",
            "paragent.execution": result.number or 0,
            "paragent.task": result.task,
            "paragent.attempt": result.attempt,
            "paragent.status": str(result.status),
            "paragent.final": result.final,
            "paragent.turns": result.turns,
            "paragent.tool_calls": result.tool_calls,
            "paragent.requests": result.requests,
            "paragent.seconds.worked": result.seconds,
            "paragent.seconds.waited": result.waited,
            "paragent.worker": result.worker,
        }
        return attributes | _given(
            {
                "gen_ai.usage.input_tokens": result.prompt_tokens,
                "gen_ai.usage.output_tokens": result.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": result.cached_tokens,
                "gen_ai.usage.reasoning.output_tokens": result.reasoning_tokens,
                "paragent.score": result.score,
                "paragent.machine": result.machine or None,
                "paragent.ending": result.ending if result.ending in _ENDINGS or self._content else None,
                "paragent.party": party_of(result.kind, result.status) or None,
                "error.type": result.kind or None,
            }
        )

    def _model_call(self, step: Mapping[str, Any], execution: Span) -> Span:
        run = self._run
        model = _name(step.get("model")) or run.model
        response, usage = _mapping(step.get("response")), _mapping(step.get("usage"))
        finish, error = _name(step.get("finish_reason")), _name(step.get("error"))
        attributes = _inherited(execution) | run.server | run.request
        attributes |= _given(
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": run.provider,
                "gen_ai.agent.name": run.agent,
                "gen_ai.request.model": model,
                "gen_ai.response.id": _name(response.get("id")),
                "gen_ai.response.model": _name(response.get("model")),
                "gen_ai.response.finish_reasons": [finish] if finish else None,
                "gen_ai.usage.input_tokens": _whole(usage.get("prompt_tokens")),
                "gen_ai.usage.output_tokens": _whole(usage.get("completion_tokens")),
                "gen_ai.usage.cache_read.input_tokens": _whole(usage.get("cached_tokens")),
                "gen_ai.usage.reasoning.output_tokens": _whole(usage.get("reasoning_tokens")),
                "paragent.request_id": _name(step.get("request_id")),
                "paragent.retries": _whole(step.get("retries")),
                "paragent.seconds.waited": _seconds(step.get("waited")) or None,
                "error.type": _error_type(error) if error else None,
            }
        )
        message = cut(error_summary(error), _LONGEST) if error and self._content else ""
        return Span(f"chat {model}", 0.0, 0.0, attributes, client=bool(run.server), error=message)

    def _tool_call(self, step: Mapping[str, Any], execution: Span, tools: Collection[str]) -> Span:
        name = _name(step.get("name"))
        if not self._content and name not in tools:
            name = _UNKNOWN
        attributes = _inherited(execution) | _given(
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.agent.name": self._run.agent,
                "gen_ai.tool.name": name,
                "gen_ai.tool.call.id": _name(step.get("call")),
                "gen_ai.tool.type": "function",
                "error.type": _TOOL_ERROR if step.get("error") else None,
            }
        )
        return Span(f"execute_tool {name}", 0.0, 0.0, attributes)


def _turn_span(execution: Span, turn: int, start: float, end: float) -> Span:
    """Return the span of a turn, extended to a step of it. Tool calls before the first turn belong to the execution itself."""
    if turn < 1:
        return execution
    found = next((one for one in reversed(execution.children) if one.attributes.get("paragent.turn") == turn), None)
    if found is None:
        found = Span(f"turn {turn}", start, end, _inherited(execution) | {"paragent.turn": turn})
        execution.children.append(found)
    found.start, found.end = min(found.start, start), max(found.end, end)
    return found


def _inherited(execution: Span) -> dict[str, Attribute]:
    """Return the attributes by which all spans of an execution are found."""
    return {name: execution.attributes[name] for name in ("paragent.run.id", "gen_ai.conversation.id")}


def _steps(trajectory: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the steps of a trajectory. Agents can change them, so they may be anything."""
    steps = trajectory.get("steps")
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


def _error_type(error: str) -> str:
    """Return the type of an error that was recorded as `TYPE: message`."""
    name = error.partition(":")[0]
    return name if name.isidentifier() else _UNKNOWN


def _given(values: Mapping[str, Attribute | None]) -> dict[str, Attribute]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _name(value: Any) -> str | None:
    """Return an id or a name, cut to a fixed length; None if there is none."""
    return cut(value, _LONGEST) if isinstance(value, str) and value else None


def _whole(value: Any) -> int | None:
    """Return a whole number that a span can have; None if `value` is something else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def _seconds(value: Any) -> float:
    """Return a duration; 0 if `value` is something else."""
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
    return number if 0 <= number < math.inf else 0.0

"""OpenTelemetry: sends the spans of a session to an OTLP endpoint, from a thread of its own.

Each execution of a rollout is a trace with a link to the span of its session, which is another trace. Backends can show and
sample traces of this size; one trace of a large run would have millions of spans.

Only runs with `--otel` import this module, because it needs the extra `otel`. The session hands over recorded results and never
waits: the queue is limited, and executions that do not fit are not sent. The standard variables of OpenTelemetry
(`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, ...) set the endpoint, its headers, the compression, the resource and the
sampler.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, DEFAULT_ON, Sampler
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from paragent._internal.ids import new_id
from paragent._internal.text import counted, printable
from paragent._internal.version import __version__
from paragent.errors import ConfigError
from paragent.rollout.span_contents import cut
from paragent.rollout.spans import ExecutionSpans, SessionTotals, Span, TracedRun
from paragent.store.records import unpack_trajectory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opentelemetry.trace import Span as StartedSpan
    from opentelemetry.trace import SpanContext, Tracer

    from paragent.rollout.prepare import RolloutPlan
    from paragent.store import Journal, RolloutResult

__all__ = ["CLOSE_TIMEOUT", "RunTracing", "check_settings", "open_tracing"]

CLOSE_TIMEOUT = 5.0
"""Seconds that the end of a session waits for the endpoint to take the next batch."""
_RETRY_TIMEOUT = 2.0
"""The same for an endpoint that has already failed: one retry, which comes after about one second."""
_LONGEST_CLOSE = 30.0
"""Seconds that it waits at most, if the endpoint takes one batch after the other."""
_CHECK_INTERVAL = 0.1
"""Seconds between two looks at whether the endpoint has failed."""
_MOST_EXECUTIONS = 2_000
_MOST_BYTES = 64 * 1024 * 1024
"""Limits of the queue: executions, and bytes of their packed trajectories."""
_BATCH_SPANS = 512
_BATCH_CHARACTERS = 4 * 1024 * 1024
"""Limits of one request: spans, and characters of their contents. The collector of OpenTelemetry accepts 20 MiB."""
_FLUSH_INTERVAL = 1.0
"""Seconds without a new result after which a batch is sent that is not full."""
_LONGEST_PROBLEM = 256
"""Characters of the reason why spans were not sent: the endpoint can answer with any text."""
_PROTOCOL = "http/protobuf"
_SAMPLER = "OTEL_TRACES_SAMPLER"
_HEADERS_LOGGER = "opentelemetry.util.re"
"""The logger whose warnings have the value of a header, which may be a secret."""
_TRACEPARENT = "traceparent"
"""Journal key, and the key of the propagator: the ids of the span of the last session."""
_RUN_ID = "run_id"
"""Journal key: identifies the run in traces. Its name and its settings do not, because `--fresh` starts a new run with both."""


def check_settings() -> None:
    """Check the standard variables.

    Raises:
        ConfigError: one has a wrong value, or asks for another protocol than the one that is supported.
    """
    _check_protocol()
    problem = _FirstProblem()
    try:
        OTLPSpanExporter().shutdown()  # type: ignore[no-untyped-call]
        _tracer(_Batch(), _sampler())
    except Exception as error:  # noqa: BLE001 - versions of the SDK raise different errors for a wrong value
        problem.keep(f"{type(error).__name__}: {error}")
    finally:
        problem.remove()
    if problem.message:
        raise ConfigError(f"a variable of OpenTelemetry (OTEL_...) has a wrong value: {problem.message}")


def _check_protocol() -> None:
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if value := os.environ.get(name):
            if value != _PROTOCOL:
                raise ConfigError(
                    f"{name} is {value!r}, and --otel sends {_PROTOCOL}: set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL to "
                    f"{_PROTOCOL} and OTEL_EXPORTER_OTLP_TRACES_ENDPOINT to an address like http://localhost:4318/v1/traces"
                )
            return


def open_tracing(plan: RolloutPlan, journal: Journal, session: int) -> RunTracing:
    """Begin to send the spans of a session.

    The journal has the id of the run, which all spans of its sessions have, and the ids of the last session's span.
    """
    run_id = journal.meta(_RUN_ID) or new_id("run")
    previous = journal.meta(_TRACEPARENT)
    run = TracedRun.of(plan, run_id, session)
    tracing = RunTracing(run, started=time.time(), previous=previous, content=plan.config.run.otel_content)
    journal.set_meta(_RUN_ID, run_id)
    journal.set_meta(_TRACEPARENT, tracing.traceparent)
    return tracing


class RunTracing:
    """The traces of one session. Call `record` and `close` from one thread.

    Args:
        run: the session.
        started: when it started, in seconds since the epoch.
        previous: the `traceparent` of the run's previous session, to which the session's span has a link; None without one.
        content: whether spans have contents.
    """

    def __init__(self, run: TracedRun, *, started: float, previous: str | None, content: bool) -> None:
        self._spans = ExecutionSpans(run, content=content)
        self._totals = SessionTotals()
        self._problem = _FirstProblem()
        self._exporter = OTLPSpanExporter()
        self._batch = _Batch()
        self._tracer = _tracer(self._batch, _sampler())
        self._session = _tracer(self._batch, _session_sampler()).start_span(
            f"run {run.run_name}",
            Context(),
            links=_link(_span_context(previous), "previous session"),
            start_time=_nanoseconds(started),
            attributes=run.session_attributes(),
        )
        self._to_session = _link(self._session.get_span_context(), "session")
        self._started = self._ended = started
        self._changed = threading.Condition()
        """Protects the fields below and wakes the thread."""
        self._queue: deque[RolloutResult] = deque()
        self._queued_bytes = 0
        self._closing = False
        self._abandoned = False
        self._unsent_executions = 0
        self._unsent_spans = 0
        self._in_flight = 0
        """Spans in the request that is under way."""
        self._sent_at = 0.0
        """When the endpoint took a batch for the last time."""
        self._finished = False
        """Whether the thread has sent everything."""
        self._thread = threading.Thread(target=self._send_all, name="paragent-otel", daemon=True)
        self._thread.start()

    @property
    def traceparent(self) -> str:
        """The ids of the session's span, in the form of W3C Trace Context."""
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, set_span_in_context(self._session))
        return carrier.get(_TRACEPARENT, "")

    def record(self, results: Iterable[RolloutResult]) -> None:
        """Take recorded results; return at once. Results that do not fit into the queue are not sent."""
        with self._changed:
            for result in results:
                self._totals.count(result)
                size = len(result.trajectory or b"")
                if len(self._queue) >= _MOST_EXECUTIONS or self._queued_bytes + size > _MOST_BYTES:
                    self._unsent_executions += 1
                    continue
                self._queue.append(result)
                self._queued_bytes += size
            self._changed.notify()

    def close(self, error: str = "") -> str:
        """End the session's span and send what is left, as long as the endpoint takes it.

        Args:
            error: the type of the exception that ended the session; empty without one.

        Returns:
            What was not sent, and why; an empty string if everything was sent.
        """
        self._ended = max(self._started, time.time())
        self._session.set_attributes(self._totals.attributes())
        if error:
            self._session.set_attribute("error.type", error)
            self._session.set_status(Status(StatusCode.ERROR))
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._wait_for_thread()
        with self._changed:
            self._abandoned = True
            executions = self._unsent_executions + len(self._queue)
            spans = self._unsent_spans + self._in_flight + len(self._batch.spans) + self._session.is_recording()
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # ends the pause before a retry; a request that hangs ends at its own time limit
        return self._described(spans, executions)

    def _wait_for_thread(self) -> None:
        """Wait until everything is sent, or the endpoint has not taken anything for too long."""
        began = time.monotonic()
        with self._changed:
            while not self._finished:
                limit = min(_RETRY_TIMEOUT, CLOSE_TIMEOUT) if self._problem.message else CLOSE_TIMEOUT
                until = min(max(began, self._sent_at) + limit, began + _LONGEST_CLOSE)
                if time.monotonic() >= until:
                    return
                self._changed.wait(_CHECK_INTERVAL)

    def _described(self, spans: int, executions: int) -> str:
        parts = [counted(spans, "span")] if spans else []
        parts += [f"the spans of {counted(executions, 'execution')}"] if executions else []
        if not parts:
            return ""
        reason = self._problem.message or "the endpoint is too slow"
        return f"OpenTelemetry: {' and '.join(parts)} not sent to {_endpoint()}: {reason}"

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        self._problem.thread = threading.get_ident()
        last = False
        while not last:
            result, last = self._next()
            if result is not None:
                self._make_spans(result)
            if result is None or self._batch.full:
                self._flush()
        self._session.end(_nanoseconds(self._ended))
        self._flush()
        self._problem.remove()
        with self._changed:
            self._finished = True
            self._changed.notify()

    def _next(self) -> tuple[RolloutResult | None, bool]:
        """Return the next result, or None after a pause without one; and whether no result will follow."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing, timeout=_FLUSH_INTERVAL)
            if not self._queue or self._abandoned:
                return None, self._closing
            result = self._queue.popleft()
            self._queued_bytes -= len(result.trajectory or b"")
            return result, False

    def _make_spans(self, result: RolloutResult) -> None:
        """Make the trace of an execution, unless the sampler leaves it out."""
        try:
            execution = self._spans.execution(result)
            made = self._start(execution, Context(), self._to_session)
            if not made.is_recording():
                return
            trajectory = None if result.trajectory is None else unpack_trajectory(result.trajectory, own=True)
            self._spans.add_steps(execution, result, trajectory)
            made.set_attributes(execution.attributes)
            self._end(execution, made)
        except Exception as error:  # noqa: BLE001 - agents can put anything into a trajectory
            self._problem.keep(f"execution {result.number}: {type(error).__name__}")
            with self._changed:
                self._unsent_executions += 1

    def _start(self, span: Span, parent: Context, links: Sequence[Link] = ()) -> StartedSpan:
        kind = SpanKind.CLIENT if span.client else SpanKind.INTERNAL
        start = _nanoseconds(span.start)
        return self._tracer.start_span(span.name, parent, kind, span.attributes, links, start)

    def _end(self, span: Span, made: StartedSpan) -> None:
        """Make the spans below a span that was started, and end it."""
        end = _nanoseconds(span.end)
        for name, value in span.scores.items():
            score: dict[str, str | float] = {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": value}
            made.add_event("gen_ai.evaluation.result", score, timestamp=end)
        if "error.type" in span.attributes:
            made.set_status(Status(StatusCode.ERROR, span.error or None))
        context = set_span_in_context(made, Context())
        for child in span.children:
            self._end(child, self._start(child, context))
        made.end(end)

    def _flush(self) -> None:
        """Send the spans of the batch; spans that the endpoint does not take are counted."""
        while self._batch.spans:
            with self._changed:
                if self._abandoned:
                    return
                spans = self._batch.take()
                self._in_flight = len(spans)
            sent = self._export(spans)
            with self._changed:
                self._in_flight = 0
                if sent:
                    self._sent_at = time.monotonic()
                else:
                    self._unsent_spans += len(spans)

    def _export(self, spans: list[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - whatever the exporter raises must not end the thread
            self._problem.keep(f"{type(error).__name__}: {error}")
            return False


class _Batch(SpanProcessor):
    """Collects ended spans. Used by the thread that sends them."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self._characters = 0

    @property
    def full(self) -> bool:
        """Whether the spans should be sent now."""
        return len(self.spans) >= _BATCH_SPANS or self._characters >= _BATCH_CHARACTERS

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self.spans.append(span)
            self._characters += _characters(span)

    def take(self) -> list[ReadableSpan]:
        """Remove and return the spans of the next request."""
        taken: list[ReadableSpan] = []
        room = _BATCH_CHARACTERS
        for span in self.spans[:_BATCH_SPANS]:
            room -= _characters(span)
            if taken and room < 0:
                break
            taken.append(span)
        del self.spans[: len(taken)]
        self._characters -= sum(map(_characters, taken))
        return taken


def _characters(span: ReadableSpan) -> int:
    return sum(len(value) for value in (span.attributes or {}).values() if isinstance(value, str))


class _FirstProblem(logging.Handler):
    """Keeps the first warning of OpenTelemetry, which tells the cause. Warnings without a handler would disturb the display."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.message = ""
        self.thread = threading.get_ident()
        """The thread whose warnings are kept: other threads belong to other sessions."""
        self._logger = logging.getLogger("opentelemetry")
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread != self.thread:
            return
        values = record.args if isinstance(record.args, tuple) else ()
        error = next((value for value in values if isinstance(value, Exception)), None)
        if record.name == _HEADERS_LOGGER:
            self.keep("OTEL_EXPORTER_OTLP_HEADERS is not of the form NAME=VALUE,NAME=VALUE")
        else:
            self.keep(type(error).__name__ if error else record.getMessage())

    def keep(self, message: str) -> None:
        """Keep the first line of a message, if it is the first."""
        self.message = self.message or cut(printable(message.strip().partition("\n")[0]), _LONGEST_PROBLEM)

    def remove(self) -> None:
        """Stop listening."""
        self._logger.removeHandler(self)


def _tracer(batch: _Batch, sampler: Sampler | None) -> Tracer:
    provider = TracerProvider(sampler, _resource(), shutdown_on_exit=False)
    provider.add_span_processor(batch)
    return provider.get_tracer("paragent", __version__)


def _sampler() -> Sampler | None:
    """Return the sampler of executions; None for that of the standard variables. The SDK warns of an empty variable."""
    return None if os.environ.get(_SAMPLER) else DEFAULT_ON


def _session_sampler() -> Sampler | None:
    """Return the sampler of sessions. They are sent with every ratio: they have the totals, and executions have links to them."""
    return None if os.environ.get(_SAMPLER, "").lower().endswith("always_off") else ALWAYS_ON


def _resource() -> Resource:
    """Return the description of this process; the standard variables have priority."""
    own = Resource.create({"service.name": "paragent", "service.version": __version__})
    return own.merge(OTELResourceDetector().detect())


def _span_context(traceparent: str | None) -> SpanContext:
    carrier = {_TRACEPARENT: traceparent or ""}
    return get_current_span(TraceContextTextMapPropagator().extract(carrier, Context())).get_span_context()


def _link(target: SpanContext, meaning: str) -> list[Link]:
    """Return a list with the link to a span; an empty list if there is no such span."""
    return [Link(target, {"paragent.link": meaning})] if target.is_valid else []


def _endpoint() -> str:
    """Return the address of the endpoint without credentials, for messages."""
    base = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://localhost:4318"
    parts = urlsplit(os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or base)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)

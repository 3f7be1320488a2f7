"""An OTLP/HTTP receiver on loopback, which decodes the spans that it gets; it can hang or refuse."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

__all__ = ["OtlpReceiver", "ReceivedSpan"]


@dataclass
class ReceivedSpan:
    """One span, with the spans whose parent it is."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    error: bool
    message: str
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    links: list[tuple[str, str]]
    children: list[ReceivedSpan] = field(default_factory=list)

    def all(self) -> list[ReceivedSpan]:
        """Return this span and all below it."""
        return [self, *(one for child in self.children for one in child.all())]


class OtlpReceiver:
    """A receiver; a context manager. With `status`, it answers every request with that status and `reason`."""

    def __init__(self, status: int = 200, *, reason: str | None = None, hangs: bool = False) -> None:
        self.bodies: list[bytes] = []
        """The bodies of all requests, decompressed."""
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.status, self.reason = status, reason
        self.released = threading.Event()
        """Until it is set, requests are not answered, if the receiver hangs."""
        if not hangs:
            self.released.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                receiver.paths.append(self.path)
                receiver.released.wait(60)
                compressed = self.headers.get("Content-Encoding") == "gzip"
                receiver.bodies.append(gzip.decompress(body) if compressed else body)
                try:
                    self.send_response(receiver.status, receiver.reason)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                except ConnectionError:  # the sender did not wait
                    pass

            def log_message(self, format: str, *values: Any) -> None:  # noqa: A002 - the name in the base class
                pass

        return Handler

    @property
    def url(self) -> str:
        """The value of OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def resources(self) -> list[dict[str, Any]]:
        """Return the attributes of the resource of each request."""
        return [_attributes(one.resource.attributes) for request in self._requests() for one in request.resource_spans]

    def spans(self) -> list[ReceivedSpan]:
        """Return all spans, with their children in the order of their start."""
        found = [
            _received(span)
            for request in self._requests()
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        by_id = {span.id: span for span in found}
        for span in sorted(found, key=lambda one: (one.start, one.end)):
            if span.parent in by_id:
                by_id[span.parent].children.append(span)
        return found

    def roots(self) -> list[ReceivedSpan]:
        """Return the spans whose parent was not received."""
        spans = self.spans()
        known = {span.id for span in spans}
        return [span for span in spans if span.parent not in known]

    def sessions(self) -> list[ReceivedSpan]:
        """Return the spans of sessions."""
        return [root for root in self.roots() if root.name.startswith("run ")]

    def executions(self) -> list[ReceivedSpan]:
        """Return the root spans of executions."""
        return [root for root in self.roots() if root.name.startswith("invoke_agent ")]

    def _requests(self) -> list[ExportTraceServiceRequest]:
        return [ExportTraceServiceRequest.FromString(body) for body in self.bodies]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


def _received(span: ProtoSpan) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        kind=ProtoSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        error=span.status.code == 2,
        message=span.status.message,
        attributes=_attributes(span.attributes),
        events=[(event.name, _attributes(event.attributes)) for event in span.events],
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return None if kind is None else getattr(value, kind)

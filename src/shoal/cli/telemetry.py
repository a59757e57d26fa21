"""OpenTelemetry: spans and metrics of a run, made from its events by the GenAI conventions, sent by OTLP over HTTP.

Imported only on request. Agents' prompts and tool arguments are sent only if the user asks for that.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shoal import __version__
from shoal.cli import output
from shoal.cli.output import flat
from shoal.cli.render.columns import beginning
from shoal.model.activity import Act
from shoal.model.events import (
    AgentActed,
    GateAnswered,
    GateOpened,
    Recorded,
    RunEnded,
    RunResumed,
    RunStarted,
    SessionEnded,
    SessionStarted,
    StepEnded,
    StepStarted,
)
from shoal.model.plan import Telemetry
from shoal.model.results import Usage
from shoal.model.status import Status as RunStatus

NAME_CHARS = 120
TEXT_CHARS = 2000
EXPORT_SECONDS = 5.0
MOST_OPEN_CALLS = 1000
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
Attributes = dict[str, str | int | float | bool]


@contextlib.asynccontextmanager
async def open_telemetry(telemetry: Telemetry, environ: Mapping[str, str]) -> AsyncIterator["RunTelemetry"]:
    """Send what happens in the body; afterwards, wait a bounded time for the rest."""
    with _report_faults():
        resource = Resource.create({"service.version": __version__, **_service_name(environ)})
        tracers, meters = TracerProvider(resource=resource), MeterProvider(_readers(telemetry, environ), resource)
        for processor in _processors(telemetry, environ):
            tracers.add_span_processor(processor)
        has_texts = telemetry.has_prompts or environ.get(CAPTURE, "").lower() == "true"
        try:
            yield RunTelemetry(tracers.get_tracer("shoal"), meters.get_meter("shoal"), environ, has_texts=has_texts)
        finally:
            await asyncio.to_thread(_shut_down, tracers, meters)


def _shut_down(tracers: TracerProvider, meters: MeterProvider) -> None:
    """Send the rest; each exporter has a time limit of its own."""
    tracers.shutdown()
    meters.shutdown(timeout_millis=2 * EXPORT_SECONDS * 1000)


def _service_name(environ: Mapping[str, str]) -> dict[str, str]:
    is_named = "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "") or environ.get("OTEL_SERVICE_NAME")
    return {} if is_named else {"service.name": "shoal"}


def _processors(telemetry: Telemetry, environ: Mapping[str, str]) -> list[SpanProcessor]:
    if environ.get("OTEL_TRACES_EXPORTER") == "none":
        return []
    endpoint = f"{telemetry.endpoint.rstrip('/')}/v1/traces" if telemetry.endpoint else None
    return [BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=_timeout(environ)))]


def _readers(telemetry: Telemetry, environ: Mapping[str, str]) -> list[MetricReader]:
    if environ.get("OTEL_METRICS_EXPORTER") == "none":
        return []
    endpoint = f"{telemetry.endpoint.rstrip('/')}/v1/metrics" if telemetry.endpoint else None
    return [PeriodicExportingMetricReader(OTLPMetricExporter(endpoint, timeout=_timeout(environ)))]


def _timeout(environ: Mapping[str, str]) -> float | None:
    """Wait no longer than this for the receiver, unless the user says how long."""
    is_given = any(name.startswith("OTEL_EXPORTER_OTLP") and name.endswith("TIMEOUT") for name in environ)
    return None if is_given else EXPORT_SECONDS


@contextlib.contextmanager
def _report_faults() -> Iterator[None]:
    """Print the first thing that goes wrong with the export, instead of whatever the SDK logs over the screen."""
    logger, handler = logging.getLogger("opentelemetry"), _FirstFault()
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


class _FirstFault(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._is_reported = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._is_reported:
            self._is_reported = True
            output.print_err(f"shoal: telemetry: {beginning(flat(record.getMessage()), TEXT_CHARS)}")


class RunTelemetry:
    """The spans of one run: run, step, session, tool call; and what sessions spent, as metrics."""

    def __init__(self, tracer: trace.Tracer, meter: Meter, environ: Mapping[str, str], *, has_texts: bool) -> None:
        self._tracer = tracer
        self._has_texts = has_texts
        self._parent = TraceContextTextMapPropagator().extract({"traceparent": environ.get("TRACEPARENT", "")})
        self._run: Span | None = None
        self._steps: dict[str, Span] = {}
        self._sessions: dict[str, Span] = {}
        self._agents: dict[str, Attributes] = {}
        self._calls: dict[tuple[str, str], Span] = {}
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}", "Tokens that a session used.")
        self._durations = meter.create_histogram("gen_ai.client.operation.duration", "s", "How long a session took.")
        self._cost = meter.create_counter("shoal.cost", "{USD}", "What sessions cost, as far as their clients say.")
        self._tool_calls = meter.create_counter("shoal.tool.calls", "{call}", "Tool calls of agents.")

    def on_event(self, recorded: Recorded) -> None:
        """Take one event."""
        at = int(recorded.at * 1e9)
        match recorded.event:
            case RunStarted() | RunResumed() as event:
                name = event.name if isinstance(event, RunStarted) else event.run
                attributes: Attributes = {"gen_ai.operation.name": "invoke_workflow", "shoal.run": event.run}
                attributes["gen_ai.workflow.name"] = _name(name)
                self._run = self._start(f"invoke_workflow {_name(name)}", self._parent, at, attributes)
            case StepStarted(step=step, workers=workers):
                attributes = {"shoal.step": step, "shoal.workers": workers}
                self._steps[step] = self._start(f"step {_name(step)}", self._within(self._run), at, attributes)
            case GateOpened(step=step) if step not in self._steps:
                self._steps[step] = self._start(
                    f"gate {_name(step)}", self._within(self._run), at, {"shoal.step": step}
                )
            case StepEnded(step=step, status=status):
                _end(self._steps.pop(step, None), status, at)
            case GateAnswered(step=step, answer=answer) if step in self._steps:
                self._steps[step].add_event("answered", {"shoal.answer": answer.value}, at)
            case SessionStarted() as event:
                self._session_started(event, at)
            case SessionEnded() as event:
                self._session_ended(event, at)
            case AgentActed() as event if event.session in self._sessions:
                self._agent_acted(event, at)
            case RunEnded(status=status):
                self._run_ended(status, at)

    def _start(self, name: str, parent: Context, at: int, attributes: Attributes) -> Span:
        return self._tracer.start_span(name, parent, SpanKind.INTERNAL, attributes, start_time=at)

    def _within(self, span: Span | None) -> Context:
        return self._parent if span is None else trace.set_span_in_context(span)

    def _session_started(self, event: SessionStarted, at: int) -> None:
        agent = event.agent or event.adapter or event.step
        attributes: Attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": _name(agent)}
        self._agents[event.session] = dict(attributes)
        attributes |= {
            "gen_ai.agent.id": event.session,
            "shoal.run": event.run,
            "shoal.step": event.step,
            "shoal.attempt": event.attempt,
            "shoal.adapter": event.adapter,
        }
        if self._has_texts and event.prompt:
            parts = [{"type": "text", "content": event.prompt}]
            attributes["gen_ai.input.messages"] = json.dumps([{"role": "user", "parts": parts}])
        parent = self._within(self._steps.get(event.step, self._run))
        self._sessions[event.session] = self._start(f"invoke_agent {_name(agent)}", parent, at, attributes)

    def _agent_acted(self, event: AgentActed, at: int) -> None:
        span = self._sessions[event.session]
        match event.act:
            case Act.BEGAN if event.text:
                span.set_attribute("gen_ai.request.model", _name(event.text))
            case Act.TOOL:
                self._tool_called(event, span, at)
            case Act.RESULT if (call := self._calls.pop((event.session, event.call), None)) is not None:
                if self._has_texts:
                    call.set_attribute("gen_ai.tool.call.result", beginning(event.text, TEXT_CHARS))
                if not event.ok:
                    call.set_status(Status(StatusCode.ERROR))
                call.end(at)
            case Act.RETRY:
                span.add_event("retry", {"shoal.seconds": event.seconds}, at)

    def _tool_called(self, event: AgentActed, parent: Span, at: int) -> None:
        attributes: Attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": _name(event.tool)}
        self._tool_calls.add(1, self._agents[event.session] | {"gen_ai.tool.name": _name(event.tool)})
        attributes |= {"gen_ai.tool.call.id": _name(event.call), "shoal.session": event.session}
        if self._has_texts:
            attributes["gen_ai.tool.call.arguments"] = beginning(event.text, TEXT_CHARS)
        call = self._start(f"execute_tool {_name(event.tool)}", self._within(parent), at, attributes)
        known = (event.session, event.call)
        if event.call and known not in self._calls and len(self._calls) < MOST_OPEN_CALLS:
            self._calls[known] = call
        else:
            call.end(at)  # nothing will say when it ended

    def _session_ended(self, event: SessionEnded, at: int) -> None:
        self._end_calls(event.session, at)
        span, agent = self._sessions.pop(event.session, None), self._agents.pop(event.session, Attributes())
        if span is None:
            return
        result = event.result
        span.set_attributes(
            {"shoal.files_changed": result.files_changed, **_usage_attributes(result.usage)}
            | {f"shoal.{name}": value for name, value in result.resources.items()}
        )
        _end(span, result.status, at)
        for kind in ("input", "output"):
            if number := int(result.usage.get(f"{kind}_tokens", 0)):
                self._tokens.record(number, agent | {"gen_ai.token.type": kind})
        self._durations.record(result.duration_seconds, agent | {"shoal.status": result.status.value})
        self._cost.add(result.usage.get("cost_usd", 0.0), agent)

    def _end_calls(self, session: str, at: int) -> None:
        for known in [known for known in self._calls if known[0] == session]:
            self._calls.pop(known).end(at)

    def _run_ended(self, status: RunStatus, at: int) -> None:
        for span in (*self._calls.values(), *self._sessions.values(), *self._steps.values()):
            span.end(at)
        _end(self._run, status, at)


def _end(span: Span | None, status: RunStatus, at: int) -> None:
    """End a span as its part of the run ended; what agents wrote about it stays here."""
    if span is None:
        return
    span.set_attribute("shoal.status", status.value)
    if not status.is_good:
        span.set_attribute("error.type", status.value)
        span.set_status(Status(StatusCode.ERROR))
    span.end(at)


def _usage_attributes(usage: Usage) -> Attributes:
    found: Attributes = {}
    for kind in ("input", "output"):
        if f"{kind}_tokens" in usage:
            found[f"gen_ai.usage.{kind}_tokens"] = int(usage[f"{kind}_tokens"])
    if "cost_usd" in usage:
        found["shoal.cost_usd"] = usage["cost_usd"]
    return found


def _name(text: str) -> str:
    return beginning(flat(text), NAME_CHARS)

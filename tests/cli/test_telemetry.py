"""Telemetry: what an OTLP receiver on loopback gets from a real run, and what it does not."""

import gzip
import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.cli.conftest import Shoal
from tests.cli.test_live_run import CLIENT, scripted
from tests.cli.warm import Said

# Ends, where the client of the live tests works on until it is stopped.
END = """\
use(2)
result(2, False)
spent = {"modelUsage": {"m": {"inputTokens": 3000, "outputTokens": 400}}, "total_cost_usd": 0.25}
say(type="result", subtype="success", is_error=False, result="done", session_id="s", **spent)
"""
PROGRAM = CLIENT.replace("time.sleep(600)\n", END)
SECRET = "the secret recipe"


@dataclass
class Receiver:
    """What was received."""

    url: str
    traces: list[ExportTraceServiceRequest] = field(default_factory=list)
    metrics: list[ExportMetricsServiceRequest] = field(default_factory=list)

    @property
    def spans(self) -> dict[str, Any]:
        """Give the spans by their names."""
        scopes = [scope for request in self.traces for group in request.resource_spans for scope in group.scope_spans]
        return {span.name: span for scope in scopes for span in scope.spans}

    @property
    def points(self) -> dict[str, list[Any]]:
        """Give the points of each metric."""
        scopes = [scope for got in self.metrics for group in got.resource_metrics for scope in group.scope_metrics]
        found: dict[str, list[Any]] = {}
        for metric in [metric for scope in scopes for metric in scope.metrics]:
            points = metric.histogram.data_points if metric.HasField("histogram") else metric.sum.data_points
            found.setdefault(metric.name, []).extend(points)
        return found


def attributes(span: Any) -> dict[str, Any]:  # noqa: ANN401 - a message of protobuf
    values = {pair.key: pair.value for pair in span.attributes}
    return {key: getattr(value, str(value.WhichOneof("value"))) for key, value in values.items()}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Receive OTLP on loopback."""
    got = Receiver("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            if self.path == "/v1/traces":
                got.traces.append(ExportTraceServiceRequest.FromString(body))
            else:
                got.metrics.append(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        got.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield got
        server.shutdown()
        thread.join()


def run_client(repo: Path, shoal: Shoal, runtime: dict[str, object] | None = None, **env: str) -> Said:
    steps = [
        {"name": "work", "agent": "client", "prompt": f"fails {SECRET}", "on_failure": "best_effort"},
        {"name": "bad", "agent": "bad", "prompt": "go", "on_failure": "best_effort"},
    ]
    client = {"adapter": "claude", "command": [sys.executable, "-c", PROGRAM], "network": "none"}
    agents = {"client": client, "bad": scripted({"fail": SECRET})}
    (repo / "p.yaml").write_text(json.dumps({"runtime": runtime or {}, "agents": agents, "steps": steps}))
    return shoal("run", "p.yaml", "--json", ANTHROPIC_API_KEY="dummy", **env)


def test_a_run_is_sent_as_spans_and_metrics_without_its_texts(repo: Path, shoal: Shoal, receiver: Receiver) -> None:
    said = run_client(repo, shoal, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)

    report = json.loads(said.out)
    spans = receiver.spans
    names = ["invoke_workflow p", "step work", "invoke_agent client", "execute_tool Bash", "invoke_agent bad"]
    run, step, session, tool, bad = (spans[name] for name in names)
    assert [step.parent_span_id, session.parent_span_id, tool.parent_span_id] == [
        run.span_id,
        step.span_id,
        session.span_id,
    ]
    assert len({span.trace_id for span in spans.values()}) == 1
    assert attributes(run)["shoal.run"] == report["run"]
    known = attributes(session)
    assert (known["gen_ai.operation.name"], known["gen_ai.agent.name"]) == ("invoke_agent", "client")
    assert known["gen_ai.request.model"] == "m"
    usage = report["steps"][0]["worker_results"][0]["usage"]
    assert known["gen_ai.usage.input_tokens"] == usage["input_tokens"] > 0
    assert known["gen_ai.usage.output_tokens"] == usage["output_tokens"] > 0
    assert known["shoal.cpu_seconds"] > 0 or os.geteuid() != 0, "polling may see nothing of a quick agent"
    assert attributes(tool)["gen_ai.tool.name"] == "Bash"
    assert (bad.status.code, attributes(bad)["error.type"]) == (2, "failed")
    assert session.start_time_unix_nano <= tool.start_time_unix_nano <= tool.end_time_unix_nano
    tokens = {
        attributes(point)["gen_ai.token.type"]: point.sum for point in receiver.points["gen_ai.client.token.usage"]
    }
    assert tokens == {"input": usage["input_tokens"], "output": usage["output_tokens"]}
    assert sum(point.as_double for point in receiver.points["shoal.cost"]) == usage["cost_usd"] == 0.25
    assert len(receiver.points["gen_ai.client.operation.duration"]) == 2
    assert receiver.points["shoal.tool.calls"][0].as_int == 2
    sent = b"".join(request.SerializeToString() for request in receiver.traces)
    sent += b"".join(request.SerializeToString() for request in receiver.metrics)
    assert SECRET.encode() not in sent
    assert b"pytest -q" not in sent


def test_texts_are_sent_where_that_is_asked_for(repo: Path, shoal: Shoal, receiver: Receiver) -> None:
    run_client(repo, shoal, {"telemetry": {"endpoint": receiver.url, "prompts": True}})

    assert SECRET in attributes(receiver.spans["invoke_agent client"])["gen_ai.input.messages"]
    assert attributes(receiver.spans["execute_tool Bash"])["gen_ai.tool.call.arguments"] == "pytest -q"


def test_nothing_is_sent_unless_asked_or_when_switched_off(repo: Path, shoal: Shoal, receiver: Receiver) -> None:
    off = run_client(repo, shoal, {"telemetry": False}, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
    disabled = run_client(repo, shoal, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, OTEL_SDK_DISABLED="true")
    without = run_client(repo, shoal)

    assert [said.code for said in (off, disabled, without)] == [1, 1, 1]
    assert (receiver.traces, receiver.metrics) == ([], [])


def test_a_receiver_that_is_not_there_is_named_once_and_the_run_is_as_good(repo: Path, shoal: Shoal) -> None:
    said = run_client(repo, shoal, {"telemetry": {"endpoint": "http://127.0.0.1:9"}})

    assert (said.code, json.loads(said.out)["steps"][0]["status"]) == (1, "succeeded")
    assert said.err.count("shoal: telemetry: ") == 1


def test_a_trace_of_the_caller_goes_on(repo: Path, shoal: Shoal, receiver: Receiver) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    run_client(repo, shoal, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, TRACEPARENT=parent)

    assert receiver.spans["invoke_workflow p"].trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"

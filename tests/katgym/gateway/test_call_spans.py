"""OpenTelemetry spans of model calls.

Not here: metrics (`test_gateway_service.py`).
"""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

pytest.importorskip("opentelemetry.sdk.trace", reason="needs the extra 'otel'")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra 'otel'")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from katgym.errors import UsageError
from katgym.gateway.config import GatewayConfig
from katgym.gateway.gateway import Gateway
from katgym.gateway.server.app import GatewayApp
from katgym.gateway.server.call_spans import CallSpans
from katgym.rollout_store import RolloutStore

from .scripted_server import serving

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.5}


@pytest.fixture
def traced(own_server, tmp_path):
    """A gateway's client, and where its spans are."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    config = GatewayConfig(
        upstreams=(own_server.url,), auth="none", answering="chat", max_retries=0
    )
    with RolloutStore.open(tmp_path / "store") as store:
        application = GatewayApp(Gateway(config, store), CallSpans(provider)).application()
        with serving(application) as url, httpx.Client(base_url=url, timeout=60) as client:
            yield client, exporter


def test_a_call_is_a_span_below_the_agents(traced, own_server):
    client, exporter = traced
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    body = {**CHAT, "max_tokens": 9, "stop": ["x"], "seed": 3}
    answer = client.post("/s/a/v1/chat/completions", json=body, headers=headers).json()
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind.name, span.status.status_code.name) == (
        "chat tiny", "CLIENT", "UNSET",
    )  # fmt: skip
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    found = dict(span.attributes)
    assert found.pop("gen_ai.response.id") == answer["id"].removeprefix("chatcmpl-")
    assert found.pop("server.port") == int(own_server.url.rpartition(":")[2])
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.conversation.id": "a",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.stream": False,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.seed": 3,
        "gen_ai.request.stop_sequences": ("x",),
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": (answer["choices"][0]["finish_reason"],),
        "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": answer["usage"]["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 0,
        "katgym.policy_versions": (0,),
        "server.address": "127.0.0.1",
    }


def test_streams_plain_completions_and_failures_are_spans_too(traced, own_server):
    client, exporter = traced
    client.post("/s/a/v1/chat/completions", json={**CHAT, "stream": True})
    client.post("/s/a/v1/completions", json={"model": "tiny", "prompt": "hi"})
    client.post("/s/a/v1/chat/completions", json={**CHAT, "temperature": "hot"})
    own_server.fault = "status 500"
    client.post("/s/a/v1/chat/completions", json=CHAT)
    streamed, plain, malformed, failed = exporter.get_finished_spans()
    assert streamed.attributes["gen_ai.request.stream"] is True
    assert streamed.parent is None
    assert plain.name == "text_completion tiny"
    assert malformed.attributes["error.type"] == "malformed"
    assert failed.attributes["error.type"] in ("upstream", "unavailable")
    assert {span.status.status_code.name for span in (malformed, failed)} == {"ERROR"}
    assert "gen_ai.usage.output_tokens" not in failed.attributes


def test_the_environment_names_the_service_and_what_cannot_be_exported_by_is_told(monkeypatch):
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    for name, value, what in [
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp, console or none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
    ]:
        with monkeypatch.context() as patch, pytest.raises(UsageError, match=what):
            patch.setenv(name, value)
            CallSpans.from_environment()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    for told, name in (("", "katgym-gateway"), ("service.name=mine", "mine")):
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", told)
        spans = CallSpans.from_environment()
        assert spans._provider.resource.attributes["service.name"] == name
        spans.close()


@pytest.mark.slow  # a process that imports the gateway
def test_nothing_of_opentelemetry_is_imported_without_the_option():
    code = (
        "import sys, katgym.gateway.server.serve, katgym.gateway.shards.serve_shards;"
        "print([n for n in sys.modules if n.startswith('opentelemetry')])"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"

"""OpenTelemetry spans of model calls, by the semantic conventions for generative AI.

One span a call, a child of the agent's where it sends `traceparent`. Where they go is told by the
variables of OpenTelemetry (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`,
`OTEL_TRACES_SAMPLER`, ...). Prompts and answers are not in them: they are in the store.

Not here: metrics (`metrics.py`). Imported with `has_spans` alone (extra `otel`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SimpleSpanProcessor,
)
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from katgym.errors import UsageError
from katgym.gateway.call import CallContext, Served
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.version import __version__

_PROVIDER = "vllm"
_SERVICE = "katgym-gateway"
_SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "seed")
_PENALTIES = ("frequency_penalty", "presence_penalty")


class CallSpans:
    """Makes a span of every call.

    Example:
        spans = CallSpans.from_environment()
        served = await spans.follow(gateway.respond(context), context, request.headers)
    """

    def __init__(self, provider: TracerProvider) -> None:
        """provider: whose spans are exported; shut down by `close`."""
        self._provider = provider
        self._tracer = provider.get_tracer("katgym.gateway", __version__)

    @classmethod
    def from_environment(cls) -> Self:
        """Export as OpenTelemetry's variables say; `UsageError` for what is not there."""
        exporter = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip()
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
        )
        if exporter not in ("otlp", "console", "none"):
            raise UsageError(
                f"OTEL_TRACES_EXPORTER is otlp, console or none for a gateway, got {exporter!r}"
            )
        if exporter == "otlp" and protocol != "http/protobuf":
            raise UsageError(
                "spans go out by OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf (port 4318 of a"
                f" collector), got {protocol!r}"
            )
        is_named = "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        own = {} if is_named or "OTEL_SERVICE_NAME" in os.environ else {"service.name": _SERVICE}
        provider = TracerProvider(resource=Resource.create(own))
        if exporter == "otlp":
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        elif exporter == "console":
            provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
        return cls(provider)

    async def follow(
        self, work: Coroutine[Any, Any, Served], context: CallContext, headers: Mapping[str, str]
    ) -> Served:
        """Return a call's answer; its span ends with it."""
        operation = "text_completion" if context.api.ROUTE.endswith("completions") else "chat"
        span = self._tracer.start_span(
            operation,
            context=extract(headers),
            kind=SpanKind.CLIENT,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": _PROVIDER,
                "gen_ai.conversation.id": context.session.session_id,
            },
        )
        try:
            served = await work
            span.set_attributes(_describe_answer(served))
            return served
        except GatewayError as e:
            _note_error(span, str(e.kind), e.message)
            raise
        except asyncio.CancelledError:
            _note_error(span, str(ErrorKind.CLIENT_GONE), "the client disconnected")
            raise
        except BaseException as e:
            _note_error(span, type(e).__qualname__, str(e))
            raise
        finally:
            if hasattr(context, "call"):  # it was parsed
                span.update_name(f"{operation} {context.call.model}".rstrip())
                span.set_attributes(_describe_call(context))
            span.end()

    def close(self) -> None:
        """Export what is left."""
        self._provider.shutdown()


def _describe_call(context: CallContext) -> dict[str, AttributeValue]:
    """Return what was asked for, the owner's settings included once they are known."""
    call = context.call
    sampling = (context.sampling if context.model else call.sampling).as_dict()
    found: dict[str, AttributeValue] = {
        "gen_ai.request.model": call.model,
        "gen_ai.request.stream": call.is_stream,
    }
    for name in (*_SAMPLING, *_PENALTIES):
        if name in sampling:
            found[f"gen_ai.request.{name}"] = sampling[name]
    if sampling.get("stop"):
        found["gen_ai.request.stop_sequences"] = list(sampling["stop"])
    if call.num_choices > 1:
        found["gen_ai.request.choice.count"] = call.num_choices
    if context.model:
        found["gen_ai.response.model"] = context.model
    return found


def _describe_answer(served: Served) -> dict[str, AttributeValue]:
    reply = served.reply
    versions = {span.version for answer in reply.answers for span in answer.versions}
    found: dict[str, AttributeValue] = {
        "gen_ai.response.id": served.call_id,
        "gen_ai.response.finish_reasons": [answer.finish_reason for answer in reply.answers],
        "gen_ai.usage.input_tokens": served.num_prompt_tokens,
        "gen_ai.usage.output_tokens": served.num_completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": reply.num_cached_tokens,
        "katgym.policy_versions": sorted(versions),
    }
    place = urlsplit(reply.upstream)
    if place.hostname:
        found["server.address"] = place.hostname
        found["server.port"] = place.port or (443 if place.scheme == "https" else 80)
    return found


def _note_error(span: Span, kind: str, text: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, text[:1000]))

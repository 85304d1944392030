"""CPU of an OpenTelemetry span of a model call: made, and encoded for a collector.

    .venv/bin/python benchmarks/gateway_spans.py > benchmarks/gateway_spans.csv

The exporter encodes batches as OTLP's protobuf and sends them nowhere. Medians of the turns. Not
here: a gateway's whole call (`gateway.py`).
"""

from __future__ import annotations

import asyncio
import csv
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from katgym.gateway.call import Answer, CallContext, CallSampling, ModelCall, Reply, Served
from katgym.gateway.server.call_spans import CallSpans
from katgym.gateway.wire import openai_chat

NUM_SPANS, TURNS = 2000, 5
HEADERS = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}


class Encoder(SpanExporter):
    """Encodes spans and sends them nowhere."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


def one_call() -> tuple[CallContext, Served]:
    """Return a call and its answer."""
    sampling = CallSampling(temperature=1.0, max_tokens=64)
    call = ModelCall(route="openai/chat", model="m", messages=(), sampling=sampling)
    session: Any = SimpleNamespace(session_id="a")
    context = CallContext(session=session, api=openai_chat)
    context.call, context.model, context.sampling = call, "m", sampling
    answer = Answer(
        message={"role": "assistant", "content": ""}, completion_ids=[1], policy_logprobs=[0.0],
        versions=[], finish_reason="stop",
    )  # fmt: skip
    reply = Reply(
        prompt_ids=[1], answers=[answer], upstream="http://a:8000", sent_s=0.0, answered_s=0.0
    )
    return context, Served(call_id="x", created_s=1, call=call, reply=reply)


async def turn() -> float:
    """Return milliseconds of CPU a span, in all threads."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Encoder(), max_queue_size=2 * NUM_SPANS))
    spans, (context, served) = CallSpans(provider), one_call()

    async def work() -> Served:
        return served

    began = time.process_time()
    for _ in range(NUM_SPANS):
        await spans.follow(work(), context, HEADERS)
    spans.close()
    return 1e3 * (time.process_time() - began) / NUM_SPANS


def main() -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True,
        cwd=Path(__file__).parent,
    ).stdout.strip()  # fmt: skip
    value = round(statistics.median(asyncio.run(turn()) for _ in range(TURNS)), 3)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(("figure", "value", "unit", "turns", "python", "commit"))
    out.writerow(("span", value, "ms CPU/call", TURNS, platform.python_version(), commit))


if __name__ == "__main__":
    main()

"""Metrics of a gateway in Prometheus' text format (version 0.0.4).

Counters start at 0 with the process. Not here: the route (`owner_routes.py`); what an agent's
session has used (`session_table.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping

from katgym.gateway.call import Served
from katgym.gateway.gateway import Gateway

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_PREFIX = "katgym_gateway_"
Samples = Mapping[tuple[tuple[str, str], ...], float]


class CallMetrics:
    """Counts calls, their tokens and how long they took."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, int]] = Counter()
        self._tokens: Counter[str] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def count_answer(self, route: str, served: Served, seconds: float) -> None:
        """Count a call that was answered."""
        self._calls[route, 200] += 1
        self._tokens["prompt"] += served.num_prompt_tokens
        self._tokens["cached"] += served.reply.num_cached_tokens
        self._tokens["completion"] += served.num_completion_tokens
        buckets = self._buckets.get(route)
        if buckets is None:
            buckets = self._buckets[route] = [0] * (len(BUCKETS_S) + 1)
            self._seconds[route] = 0.0
        buckets[bisect_left(BUCKETS_S, seconds)] += 1
        self._seconds[route] += seconds

    def count_failure(self, route: str, status: int) -> None:
        """Count a call that was answered with an error, or whose client had gone (499)."""
        self._calls[route, status] += 1

    def render(self, gateway: Gateway) -> str:
        """Return everything as Prometheus reads it, with a gateway's state of this moment."""
        calls: Samples = {
            (("route", r), ("status", str(s))): n for (r, s), n in self._calls.items()
        }
        tokens: Samples = {(("kind", kind),): float(n) for kind, n in self._tokens.items()}
        state, writer, upstreams = gateway.manager.state, gateway.writer, gateway.pool.upstreams
        lines = [
            *_metric("calls_total", "counter", "Calls by API and status.", calls),
            *_metric("tokens_total", "counter", "Tokens of answered calls.", tokens),
            *self._render_seconds(),
        ]
        for name, kind, text, value in (
            ("calls_in_flight", "gauge", "Calls at a model server.", state.num_in_flight),
            ("waiting", "gauge", "Calls and sessions held back.", state.num_waiting),
            ("sessions_begun", "gauge", "Sessions that count as begun.", state.num_begun),
            ("sessions_in_memory", "gauge", "Sessions held in memory.", len(gateway.sessions)),
            ("policy_version", "gauge", "Version of the weights.", state.version),
            ("paused", "gauge", "1 while calls are held back.", state.is_paused),
            ("ready", "gauge", "1 while calls are taken.", not gateway.readiness.reasons()),
            ("store_commits_total", "counter", "Transactions.", writer.num_commits),
            ("store_writes_total", "counter", "Records of transactions.", writer.num_writes),
            ("store_waiting", "gauge", "Records not begun to be written.", writer.num_waiting),
            ("store_busy_seconds", "gauge", "Age of the transaction under way.", writer.busy_s),
        ):
            lines += _metric(name, kind, text, {(): float(value)})
        for name, kind, text, values in (
            (
                "upstream_healthy",
                "gauge",
                "1 if it takes calls.",
                [u.is_healthy for u in upstreams],
            ),
            ("upstream_calls_in_flight", "gauge", "Calls.", [u.num_in_flight for u in upstreams]),
            ("upstream_calls_total", "counter", "Attempts.", [u.num_calls for u in upstreams]),
            ("upstream_failures_total", "counter", "Failed.", [u.num_failures for u in upstreams]),
        ):
            pairs = zip(upstreams, values, strict=True)
            lines += _metric(name, kind, text, {(("upstream", u.url),): float(v) for u, v in pairs})
        return "\n".join(lines) + "\n"

    def _render_seconds(self) -> Iterator[str]:
        """Yield the histogram of how long answers took."""
        name = f"{_PREFIX}call_seconds"
        yield f"# HELP {name} Seconds from a call to its answer."
        yield f"# TYPE {name} histogram"
        for route, counts in self._buckets.items():
            total = 0
            for limit, num in zip([*map(repr, BUCKETS_S), "+Inf"], counts, strict=True):
                total += num
                yield f'{name}_bucket{{route="{route}",le="{limit}"}} {total}'
            yield f'{name}_sum{{route="{route}"}} {self._seconds[route]!r}'
            yield f'{name}_count{{route="{route}"}} {total}'


def _metric(name: str, kind: str, text: str, samples: Samples) -> Iterator[str]:
    """Yield one metric; samples: labels -> value."""
    yield f"# HELP {_PREFIX}{name} {text}"
    yield f"# TYPE {_PREFIX}{name} {kind}"
    for labels, value in samples.items():
        inner = ",".join(f'{key}="{_escape(label)}"' for key, label in labels)
        yield f"{_PREFIX}{name}{f'{{{inner}}}' if inner else ''} {float(value):.17g}"


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

"""Settings of a gateway.

Not here: its command line (`katgym.cli.servers.gateway_command`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from katgym.errors import UsageError

Auth = Literal["keys", "none"]
AnsweringName = Literal["auto", "tokens", "render", "chat"]

MAX_SHARDS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Everything that a gateway is given.

    Example:
        GatewayConfig(upstreams=("http://127.0.0.1:8000",), auth="keys", max_staleness=4)
    """

    upstreams: tuple[str, ...]
    """Base URLs of the model servers, without `/v1`."""
    upstream_key: str = ""
    """API key the model servers want; "" for none."""
    model: str = ""
    """Model to ask for whatever agents call it; "" passes names on, which then have to be known."""
    answering: AnsweringName = "auto"
    """How answers are made: `tokens` (rendered here, tokens in and out), `render` (rendered and
    parsed by the model server), `chat` (its chat route); `auto` takes the first that works."""
    tokenizer: str = ""
    """Directory or hub name for `tokens`; "" takes the server's model."""
    renderer: str = ""
    """Renderer for `tokens`; "" chooses by the model."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters that win over the agents', as `{temperature = 1.0, top_p = 1.0}`."""
    auth: Auth = "keys"
    """`keys`: each session has a key of its own. `none`: whoever connects is let in, and a session
    begins with its first call."""
    admin_key: str = ""
    """Key of whoever makes sessions and moves weights; needed with `keys`."""
    public_url: str = ""
    """Base URL that agents are told, as they reach this gateway; "" takes the one its owner asked
    at."""
    max_body_bytes: int = 32 << 20
    """Bytes of a request's body."""
    ignored_fields: tuple[str, ...] = ()
    """Fields of agents' requests that are left out before they are read, as `["provider"]` of an
    agent made for OpenRouter; one that is not known is refused, since it might change answers."""
    max_staleness: int | None = None
    """Weight updates a session may live through; None for any number."""
    sessions_per_version: int | None = None
    """Sessions that may begin per weight version; with `max_staleness` s at version v,
    (s + v + 1) times as many may have begun, not counting held-out ones and those that were
    replaced. None for any number."""
    is_waiting: bool = False
    """Whether a session that may not begin waits; else it is refused with 429."""
    retry_after_s: float = 1.0
    """Seconds that a 429 asks an agent to wait."""
    max_calls: int | None = None
    """Calls a session may make, unless it is made with another number."""
    max_tokens: int | None = None
    """Tokens a session may sample."""
    session_timeout_s: float | None = None
    """Seconds after which a session expires; None: never."""
    call_timeout_s: float = 1800.0
    """Seconds for one answer of a model server."""
    max_retries: int = 3
    """Attempts after the first at servers that a call has tried, or that broke with it; going on
    to a server that is left does not count."""
    max_wait_s: float = 30.0
    """Seconds a call waits at a time where no model server takes calls."""
    weights_tolerance: float = 0.25
    """Largest difference of greedy tokens' log-probabilities between model servers; 0 compares no
    weights."""
    has_spans: bool = False
    """Whether every call is an OpenTelemetry span, sent to where the variables OTEL_* say."""
    num_shards: int = 1
    """Processes that share the sessions, each with a store of its own in the store's folder."""
    keepalive_s: float = 10.0
    """A stream says that it is alive as often as this while its answer is made."""

    def __post_init__(self) -> None:
        if not self.upstreams:
            raise UsageError("a gateway needs a model server: upstreams is empty")
        for url in self.upstreams:
            if not url.startswith(("http://", "https://")):
                raise UsageError(f"upstream {url!r} is no URL, as http://127.0.0.1:8000 is")
        if self.public_url and not self.public_url.startswith(("http://", "https://")):
            raise UsageError(f"public_url {self.public_url!r} is no URL, as http://host:8900 is")
        if self.auth not in get_args(Auth):
            raise UsageError(f"auth is one of {get_args(Auth)}, got {self.auth!r}")
        if self.auth == "keys" and not self.admin_key:
            raise UsageError("with auth 'keys' an admin_key is needed")
        if self.answering not in (known := get_args(AnsweringName)):
            raise UsageError(f"answering is one of {known}, got {self.answering!r}")
        if self.sessions_per_version is not None and self.max_staleness is None:
            raise UsageError("sessions_per_version counts with max_staleness: give both")
        for name in ("temperature", "top_p", "top_k", "min_p", "max_tokens"):
            if not isinstance(self.sampling.get(name, 0), int | float):
                raise UsageError(f"sampling {name} is a number, got {self.sampling[name]!r}")
        for name in (
            "max_body_bytes",
            "call_timeout_s",
            "max_wait_s",
            "keepalive_s",
            "retry_after_s",
        ):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is > 0, got {getattr(self, name)!r}")
        if not 1 <= self.num_shards <= MAX_SHARDS:
            raise UsageError(f"num_shards is 1 to {MAX_SHARDS}, got {self.num_shards!r}")
        for name in ("max_staleness", "max_retries", "weights_tolerance"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UsageError(f"{name} is >= 0, got {value!r}")

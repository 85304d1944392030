"""A vLLM server's controls: abilities, pausing, sleeping, weight versions, adapters, reloads.

The RL routes exist where the server was started with `VLLM_SERVER_DEV_MODE=1`, those of adapters
with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`; `katgym vllm serve` does both when asked. vLLM's API key
guards none of the RL routes: a server that has them belongs on a network you trust, or is one of a
training run's own, which want a token (`middleware/bearer_guard.py`).

Not here: the order in which weights are updated (`katgym_trainer.weight_sync`); sampling
(`token_client.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from katgym.errors import PolicyError, UsageError
from katgym.policies.endpoints.http_retry import HttpClient
from katgym.vllm_server.token_api import COMPLETIONS_ROUTE, GENERATE_ROUTE

PauseMode = Literal["keep", "wait", "abort"]
SleepLevel = Literal[1, 2]
"""What a sleeping server keeps in the host's memory: 1 its weights, 2 nothing."""
_LORAS = re.compile(r"^vllm:lora_requests_info\{(.*)\} ([0-9.e+]+)$", re.M)
_FINISHED = re.compile(
    r'^vllm:request_success_total\{.*finished_reason="(?:stop|length)".*\} ([0-9.e+]+)$', re.M
)
_LISTED = re.compile(r'(?:running|waiting)_lora_adapters="([^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """Which routes a server has."""

    version: str
    """vLLM's version; "" where it is not reported."""
    has_completions: bool
    """`/v1/completions`, which takes and returns token ids since vLLM 0.10.2."""
    has_generate: bool
    """`/inference/v1/generate`: token ids, log-probabilities, weight versions."""
    has_render: bool
    """`/v1/chat/completions/render`: messages to token ids."""
    has_derender: bool
    """`/v1/chat/completions/derender`: token ids to a message with parsed tool calls."""
    has_rl: bool
    """Pause, resume, weight versions."""
    has_sleep: bool
    """Sleeping and waking; on a GPU memory is given back where it was started with
    `--enable-sleep-mode`, which is not reported."""
    has_rpc: bool
    """`/collective_rpc`, which full reloads go through."""
    has_weight_transfer: bool
    """Weights through memory or NCCL."""
    has_lora_updates: bool
    """Adapters are loaded while it runs."""


class VllmControl:
    """Controls one server; every method raises `PolicyError` when the server does not answer."""

    def __init__(self, http: HttpClient) -> None:
        self.http = http

    async def aclose(self) -> None:
        """Close the connections; may be called twice."""
        await self.http.aclose()

    async def abilities(self) -> Abilities:
        """Ask which routes it has; raises `PolicyError` without (`--disable-fastapi-docs`)."""
        answer = await self.http.get("/openapi.json")
        try:
            paths = set(answer["paths"])
        except (KeyError, TypeError) as e:
            raise PolicyError(
                f"{self.http.base_url}/openapi.json lists no paths: {answer!s:.200}",
                kind="policy_bad_response",
            ) from e
        return Abilities(
            version=str(await self._field("/version", "version")) if "/version" in paths else "",
            has_completions=COMPLETIONS_ROUTE in paths,
            has_generate=GENERATE_ROUTE in paths,
            has_render="/v1/chat/completions/render" in paths,
            has_derender="/v1/chat/completions/derender" in paths,
            has_rl={"/pause", "/resume", "/update_weight_version"} <= paths,
            has_sleep={"/sleep", "/wake_up"} <= paths,
            has_rpc="/collective_rpc" in paths,
            has_weight_transfer={"/init_weight_transfer_engine", "/update_weights"} <= paths,
            has_lora_updates="/v1/load_lora_adapter" in paths,
        )

    async def models(self) -> dict[str, dict[str, Any]]:
        """Return the served models and adapters: name -> the server's card."""
        answer = await self.http.get("/v1/models")
        try:
            return {str(card["id"]): dict(card) for card in answer["data"]}
        except (KeyError, TypeError, ValueError) as e:
            raise PolicyError(
                f"{self.http.base_url}/v1/models answered no list of models: {answer!s:.300}",
                kind="policy_bad_response",
            ) from e

    async def pause(self, mode: PauseMode = "keep", *, clear_cache: bool = True) -> None:
        """Stop sampling.

        mode: `keep` freezes requests, which go on at `resume`; `wait` lets them end first; `abort`
            ends them with what they have.
        clear_cache: forget the keys and values of every prefix, so that frozen requests are
            computed again, by the weights they go on with.
        """
        if mode not in ("keep", "wait", "abort"):
            raise UsageError(f"a pause's mode is keep, wait or abort, got {mode!r}")
        query = urlencode({"mode": mode, "clear_cache": str(clear_cache).lower()})
        await self.http.post_text(f"/pause?{query}")

    async def resume(self) -> None:
        """Go on after `pause`."""
        await self.http.post_text("/resume")

    async def is_paused(self) -> bool:
        """Return whether the server is paused."""
        return bool(await self._field("/is_paused", "is_paused"))

    async def sleep(self, level: SleepLevel = 1, *, mode: PauseMode = "keep") -> None:
        """Freeze requests, and give the memory of the GPU back; may be called twice.

        mode: what becomes of requests, as of `pause`.
        level: 1 keeps the weights in the host's memory, 2 keeps none: they have to be sent anew.
            Keys and values are computed again after `wake_up` by both. A server on a CPU only
            freezes its requests.
        """
        query = urlencode({"level": level, "mode": mode})
        await self.http.post_text(f"/sleep?{query}")

    async def wake_up(self, *parts: Literal["weights", "kv_cache"]) -> None:
        """Take memory again, for some parts or, without a name, for all.

        Frozen requests go on when no part sleeps any more.
        """
        query = urlencode([("tags", part) for part in parts])
        await self.http.post_text(f"/wake_up?{query}" if query else "/wake_up")

    async def weight_version(self) -> str:
        """Return the label of the weights; `default` until one is set."""
        return str(await self._field("/weight_info", "weight_version"))

    async def set_weight_version(self, version: str) -> None:
        """Label the weights: tokens sampled from here on are reported with it."""
        await self.http.post_text("/update_weight_version", {"new_version": version})

    async def load_lora(self, name: str, folder: Path) -> None:
        """Load an adapter, which the server does not have yet, from a folder it can read.

        The folder stays as it is for as long as the server has the adapter, which it may read
        again. Its `load_inplace` is not asked for: vLLM 0.32 keeps that wish with every request,
        and reads the adapter from disk again for each token.
        """
        await self.http.post_text(
            "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}
        )

    async def unload_lora(self, name: str) -> None:
        """Forget an adapter: no request can ask for it any more, those that run end with it."""
        await self.http.post_text("/v1/unload_lora_adapter", {"lora_name": name})

    async def loras_in_use(self) -> set[str]:
        """Return the adapters of requests that run or wait, by the server's latest metrics.

        It tells none where it was started with `--disable-log-stats`, and those of one engine
        where it has several.
        """
        latest, found = 0.0, ""
        for labels, seconds in _LORAS.findall(await self.http.get_text("/metrics")):
            if float(seconds) >= latest:
                latest, found = float(seconds), labels
        names = (name for listed in _LISTED.findall(found) for name in listed.split(","))
        return {name for name in names if name}

    async def num_finished(self) -> int | None:
        """Return how many requests have ended by themselves since the server was started.

        None where it does not count them (`--disable-log-stats`).
        """
        found = _FINISHED.findall(await self.http.get_text("/metrics"))
        return int(sum(map(float, found))) if found else None

    async def reload_weights(self, folder: Path, *, timeout_s: float = 300.0) -> None:
        """Load all weights from safetensors in a folder the server can read."""
        body = {
            "method": "reload_weights",
            "kwargs": {"weights_path": str(folder)},
            "timeout": timeout_s,
        }
        await self.http.post_text("/collective_rpc", body)

    async def world_size(self) -> int:
        """Return how many workers the server has, over all its replicas."""
        return int(await self._field("/get_world_size", "world_size"))

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes; False where running requests hold some."""
        query = urlencode({"reset_running_requests": str(reset_running_requests).lower()})
        answer = await self.http.post(f"/reset_prefix_cache?{query}", {})
        return bool(isinstance(answer, dict) and answer.get("success"))

    async def _field(self, path: str, name: str) -> Any:
        answer = await self.http.get(path)
        try:
            return answer[name]
        except (KeyError, TypeError) as e:
            raise PolicyError(
                f"{self.http.base_url}{path} answered no {name}: {answer!s:.200}",
                kind="policy_bad_response",
            ) from e

"""A connection to a server that may die, and the requests that are lost with it.

Not here: noticing its end, and starting another (`run_servers.py`); who is asked then
(`load_balancing.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from katgym.errors import InfrastructureError
from katgym.policies.endpoints.vllm_client import AbortedError, VllmPolicy
from katgym.policies.token_policy import Generated

POLL_S = 0.5
"""How often it is looked whether a server still runs."""
_MAX_POLLS = 10
"""After as many an error is one of a server that runs."""


class LostError(InfrastructureError):
    """A server ended while it was asked for something; another is started in its place."""

    is_place = False
    """Whether its machine was lost, which is not its own fault."""


class FailoverPolicy(VllmPolicy):
    """Plays through a server that may die: what it was asked then is a `LostError`."""

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]  # those of VllmPolicy
        self.num_losses = 0
        """Times that the server went down."""
        self.has_finished = False
        """Whether a request has come back since then."""
        self._calls: set[asyncio.Task[Generated]] = set()

    async def generate(self, prompt_ids: Sequence[int], **asked: Any) -> Generated:
        num_losses = self.num_losses
        call = asyncio.create_task(super().generate(prompt_ids, **asked))
        self._calls.add(call)
        try:
            generated = await asyncio.shield(call)
            self.has_finished = True
            return generated
        except asyncio.CancelledError:
            if not call.cancelled():  # it is the caller that was cancelled
                call.cancel()
                raise
            raise LostError(f"the server of policy {self.name!r} ended") from None
        except AbortedError:
            raise
        except InfrastructureError as e:
            # Its end is noticed by whoever is quicker, and on a busy machine late.
            for _ in range(_MAX_POLLS):
                await asyncio.sleep(POLL_S)
                if self.num_losses != num_losses:
                    break
            else:
                raise
            raise LostError(f"the server of policy {self.name!r} ended") from e
        finally:
            self._calls.discard(call)

    def went_down(self) -> None:
        """Give up all requests that run."""
        self.num_losses += 1
        self.has_finished = False
        for call in self._calls:
            call.cancel()

    async def move_to(self, fresh: VllmPolicy) -> None:
        """Go on with the connection of another policy."""
        old, self._client = self._client, fresh._client
        self._is_processed = None
        await old.http.aclose()

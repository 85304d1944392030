"""`katgym train rl` on an env that hangs: other episodes take the place of those that did.

The hour that an episode has is over as soon as it hangs, as the loop's clock is then set forward.
Those that do not hang have all of it, however slow the machine is: one is played at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from pathlib import Path

import pytest
from rl_play import LowEnv, config_text, save_model

from katgym.cli.main import main
from katgym.plugins.registry import register
from katgym.rollout_store.store import RolloutStore

ENV_ID = "rltest/Hangs-v0"
TIMEOUT_S = 3600.0


@pytest.mark.slow
@pytest.mark.parametrize("is_blocking", [False, True])
def test_what_hangs_is_played_again_and_what_hangs_twice_is_masked(
    is_blocking: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reset, which checks the prompt, all 16 rollouts of a step, one of them again."""
    episodes, is_released, skipped_s = itertools.count(1), threading.Event(), []
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda _: time.monotonic() + sum(skipped_s))

    class HangingEnv(LowEnv):
        async def setup(self) -> None:
            # 1 is the first reset, 2 and 3 are one rollout, of the others each has two.
            if (number := next(episodes)) in (1, 3) or (number % 2 == 0 and number <= 32):
                skipped_s.append(TIMEOUT_S)
                await (
                    asyncio.to_thread(is_released.wait) if is_blocking else asyncio.Event().wait()
                )

    register(ENV_ID, HangingEnv, description="Hangs.", should_replace=True)
    model = save_model(tmp_path / "model")
    config = tmp_path / "rl.toml"
    told = f"timeout_s = {TIMEOUT_S}\nmax_concurrency = 1"
    config.write_text(config_text(model, steps=2, env=ENV_ID, rollouts=told))
    try:
        assert main(["train", "rl", str(config), "--out", str(tmp_path / "run")]) == 0
    finally:
        is_released.set()
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    first, second = (json.loads(line) for line in text.splitlines())
    assert first["rollout/num_invalid"] == first["rollout/invalid/env_timeout"] == 1
    assert (first["rollout/num_rollouts"], first["rollout/num_retries"]) == (16, 16)
    assert (second["rollout/num_invalid"], second["rollout/num_retries"]) == (0, 0)
    with RolloutStore.open(tmp_path / "run" / "rollouts") as store:
        records = list(store.sessions())
    advantages = ["advantage" in record.metadata for record in records]
    assert (len(records), advantages.count(False)) == (32, 1)

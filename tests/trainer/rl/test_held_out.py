"""Held-out tasks: what they say of a policy, by what heads each env's results."""

import asyncio
import tomllib

import katgym
from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.rl.held_out import HeldOut

CONFIG = """
[model]
path = "models/tiny"
[[envs]]
id = "katgym/Arithmetic-v1"
[evaluate]
every_steps = 1
num_tasks = 20
envs = ["katgym/Arithmetic-v1", "katgym/OpenSpiel-v0?game=kuhn_poker"]
"""


def test_the_headline_is_the_mean_over_envs_of_what_each_says():
    held_out = HeldOut(RlConfig.of(tomllib.loads(CONFIG), name="rl.toml"))
    found = asyncio.run(held_out.evaluate(katgym.policy("oracle"), step=3))
    sums, poker = found.lines
    assert (sums["headline"], poker["headline"]) == ("success_rate", "mean_reward")
    assert (sums["success"], poker["reward"] != poker["success"]) == (1.0, True)
    assert poker["reward_low"] < poker["reward"] < poker["reward_high"]
    assert found.headline == (1.0 + poker["reward"]) / 2
    assert found.success == (1.0 + poker["success"]) / 2
    assert found.metrics["eval/headline"] == found.headline

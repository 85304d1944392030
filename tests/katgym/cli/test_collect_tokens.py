"""`katgym rollouts collect` with a policy that samples tokens: what is stored is what it sampled.

Not here: the command itself (`test_collect_command.py`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from katgym import RolloutGroup
from katgym.cli.main import main
from katgym.rollout_store import RolloutStore, export, stored_groups

pytest.importorskip("renderers", reason="needs the extra 'hf'")
torch = pytest.importorskip("torch", reason="needs the extra 'hf'")
pytest.importorskip("transformers", reason="needs the extra 'hf'")

from byte_tokenizer import byte_tokenizer  # noqa: E402 - after the skips
from random_qwen import random_qwen  # noqa: E402
from transformers import Qwen3ForCausalLM  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of transformers with two random layers and a tokenizer of bytes."""
    path = tmp_path_factory.mktemp("tiny")
    tokenizer = byte_tokenizer()
    model = random_qwen(
        vocab_size=len(tokenizer), max_position_embeddings=2048, initializer_range=0.3
    )
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def collect(folder: Path, store: Path, *extra: object) -> int:
    options = ["--policy", f"hf:{folder}", "--tasks", 3, "--group-size", 2, "--max-tokens", 12]
    env = "katgym/TreasureHunt-v1?level=1"
    told = ["rollouts", "collect", env, *options, "--store", store, *extra]
    told += ["--set", "limits.max_turns=2"]
    return main(list(map(str, told)))


def logprobs_of(model: Any, token_ids: list[int], temperature: float) -> Any:
    """Return the log-prob of each token but the first, by one forward over all of them."""
    with torch.no_grad():
        logits = model(torch.tensor([token_ids])).logits[0, :-1].float() / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0]


def test_stored_tokens_are_those_that_the_model_sampled_and_the_same_for_a_seed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = tmp_path / "again"
    assert collect(folder, again, "--temperature", 0.7, "--concurrency", 3) == 0
    capsys.readouterr()
    assert collect(folder, tmp_path / "store", "--temperature", 0.7, "--json") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["has_tokens"]
    assert "records no tokens" not in err
    assert 0 < found["num_completion_tokens"] <= 3 * 2 * 2 * 12
    with RolloutStore.open(tmp_path / "store") as store:
        groups = dict(stored_groups(store))
        assert len(groups) == 3
        paths = [
            path
            for group in groups.values()
            for rollout in group.rollouts
            for path in rollout.trajectories()
        ]
        assert export(store, tmp_path / "rows.jsonl", format="rows") == len(paths)
    model = Qwen3ForCausalLM.from_pretrained(folder).eval()
    for path in paths:
        expected = logprobs_of(model, path.token_ids, 0.7)
        sampled = torch.tensor(path.loss_mask[1:])
        kept = torch.tensor(path.policy_logprobs[1:])
        torch.testing.assert_close(kept[sampled], expected[sampled], rtol=1e-4, atol=1e-4)
    assert sum(sum(path.loss_mask) for path in paths) == found["num_completion_tokens"]
    with RolloutStore.open(again) as store:
        others = dict(stored_groups(store))
    tokens, other_tokens = (
        {name: sampled_ids(group) for name, group in some.items()} for some in (groups, others)
    )
    assert tokens == other_tokens
    first = next(iter(tokens.values()))
    assert first[0] != first[-1]  # attempts differ


def sampled_ids(group: RolloutGroup) -> list[Any]:
    return [turn.tokens.completion_ids for r in group.rollouts for turn in r.turns if turn.tokens]

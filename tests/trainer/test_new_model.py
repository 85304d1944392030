"""A new model: played by `hf:`, with tool calls that come back as they were, made again alike."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("renderers", reason="needs the extra 'hf'")
pytest.importorskip("transformers", reason="needs the extra 'hf'")

from transformers import AutoConfig, AutoTokenizer

import katgym
from katgym.cli.main import main
from katgym.environment.messages import assistant, system, user
from katgym.errors import UnknownNameError, UsageError
from katgym.policies.hf.hf_policy import HfPolicy
from katgym.policies.rendering.chat_format import for_renderer
from katgym.policies.rendering.renderer_choice import choose_renderer
from katgym_trainer.config.new_model_config import NewModelConfig
from katgym_trainer.models.new_model import new_model
from katgym_trainer.models.new_tokenizer import (
    common_lines,
    num_fixed_tokens,
    plain_tokenizer,
    train_tokenizer,
)

ENVS = ("katgym/TreasureHunt-v1?level=2", "katgym/Arithmetic-v1?level=2")
SMALL = {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "num_tasks": 6}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("new") / "model"
    new_model(path, ENVS, NewModelConfig(**SMALL))
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def result(content: str) -> Any:
    return {"role": "tool", "tool_call_id": "call_0", "name": "look", "content": content}


def test_the_folder_is_a_qwen3_that_hf_plays(folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    assert (config.model_type, config.tie_word_embeddings) == ("qwen3", True)
    assert (config.hidden_size, config.num_hidden_layers, config.head_dim) == (16, 1, 8)
    assert (config.intermediate_size, config.rope_parameters["rope_theta"]) == (48, 100.0)
    assert set(config.layer_types) == {"full_attention"}

    async def play() -> katgym.Rollout:
        policy = katgym.policy(f"hf:{folder}")
        assert isinstance(policy, HfPolicy)
        assert type(policy.renderer).__name__ == "Qwen3Renderer"
        try:
            return await katgym.run_rollout(
                ENVS[0].partition("?")[0], policy, seed=0, limits=katgym.Limits(max_tokens=20)
            )
        finally:
            await policy.aclose()

    rollout = asyncio.run(play())
    assert rollout.has_tokens and rollout.turns[0].num_completion_tokens > 0


def test_tool_calls_come_back_as_they_were_written(tokenizer: Any) -> None:
    renderer = choose_renderer(tokenizer, model_type="qwen3")
    calls = [("look", {"place": "kitchen table é", "number": 12}), ("look", {})]
    asked = [user("Look."), assistant("", calls)]
    ids = renderer.render_ids(for_renderer(asked), tools=[TOOL])
    start = len(renderer.render_ids([user("Look.")], tools=[TOOL], add_generation_prompt=True))
    parsed = renderer.parse_response(ids[start:], tools=[TOOL])
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == calls
    assert parsed.content == ""


CONVERSATIONS: list[list[Any]] = [
    [system("Be kind."), user("Hi.")],
    [user("Look."), assistant("Well.", [("look", {"at": "é"})]), result("1"), result("2")],
    [
        system("Be kind."), user("a"),
        {"role": "assistant", "content": "b", "reasoning_content": "Hm."}, user("c"),
        assistant("", [("look", {}), ("look", {"n": 2})]), result("3"),
        {"role": "assistant", "content": "4", "reasoning_content": "So.\n"},
    ],
    [user("a"), {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nb"}],
    [user("a"), assistant("b"), system("Halt."), user("c"), assistant("d")],
]  # fmt: skip


def test_the_chat_template_says_what_the_renderer_does(
    tokenizer: Any, subtests: pytest.Subtests
) -> None:
    """So that servers, which render by template, give the model what it was trained on."""
    renderer = choose_renderer(tokenizer, model_type="qwen3")
    for messages, tools in itertools.product(CONVERSATIONS, [None, [TOOL]]):
        with subtests.test(messages=messages, has_tools=tools is not None):
            plain = for_renderer(messages)
            is_open = messages[-1]["role"] != "assistant"
            said = tokenizer.apply_chat_template(
                plain, tools=tools, tokenize=False, add_generation_prompt=is_open
            )
            ids = renderer.render_ids(plain, tools=tools, add_generation_prompt=is_open)
            assert said == tokenizer.decode(ids)


def test_digits_are_tokens_and_schemas_are_one_each(tokenizer: Any) -> None:
    digits = [tokenizer.decode([i]) for i in tokenizer.encode("chest 12034")]
    assert digits[-5:] == ["1", "2", "0", "3", "4"]
    env = katgym.make(ENVS[0].partition("?")[0])
    for tool in env.tools.values():
        assert len(tokenizer.encode(json.dumps(tool.to_openai(), ensure_ascii=False))) == 1


def test_any_text_comes_back(tokenizer: Any) -> None:
    for text in ["kitchen table", "Ünïcode 漢字 \x00\t\r\n  x", "", "<think>a"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_name_has_the_same_tokens_in_prompt_and_call(tokenizer: Any) -> None:
    place = tokenizer.encode("attic clock")
    for text in (": attic clock", ", attic clock", "the attic clock", '{"place": "attic clock'):
        assert tokenizer.encode(text)[-len(place) :] == place


def test_the_same_seed_writes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    new_model(tmp_path / "again", ENVS, NewModelConfig(**SMALL))
    files = sorted(path.name for path in folder.iterdir())
    assert files == sorted(path.name for path in (tmp_path / "again").iterdir())
    for name in files:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name
    new_model(tmp_path / "other", ENVS, NewModelConfig(**SMALL, seed=1))
    weights = "model.safetensors"
    assert (tmp_path / "other" / weights).read_bytes() != (folder / weights).read_bytes()


def test_a_folder_that_is_not_empty_is_left_alone(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"model' exists and is not an empty folder; name a new"):
        new_model(folder, ENVS)


def test_what_cannot_be_played_or_does_not_fit_is_said(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with pytest.raises(UnknownNameError, match="Did you mean 'katgym/Arithmetic-v1'"):
        new_model(path, ["katgym/Arithmetik-v0"])
    with pytest.raises(UsageError, match="needs the env ids that its vocabulary is made for"):
        new_model(path, [])
    with pytest.raises(UsageError, match=r"vocab_size is more than \d+ \(265 bytes and control"):
        new_model(path, ENVS[1:], NewModelConfig(**SMALL, vocab_size=265))
    with pytest.raises(UsageError, match=r"episode has \d+ tokens, max_positions is 50: raise it"):
        new_model(path, ENVS[1:], NewModelConfig(**SMALL, max_positions=50))
    assert not path.exists()


def test_a_shape_that_is_none_is_refused(subtests: pytest.Subtests) -> None:
    for option, text in [
        ({"hidden": 0}, "hidden is an int >= 1, got 0"),
        ({"seed": -1}, "seed is an int >= 0, got -1"),
        ({"intermediate": 0}, "intermediate is an int >= 1, or None, got 0"),
        ({"heads": 4, "kv_heads": 3}, "heads is a multiple of kv_heads, got 4 and 3"),
        ({"head_dim": 7}, "head_dim is an even int, got 7"),
        ({"init_std": 0.0}, "init_std is a number between 0 and 1, got 0.0"),
        ({"rope_theta": 1.0}, "rope_theta is a number > 1, got 1.0"),
    ]:
        with subtests.test(option=option), pytest.raises(UsageError, match=text):
            NewModelConfig(**option)


def test_merges_are_what_fits(tmp_path: Path) -> None:
    text = "one, two; one, two"
    assert len(train_tokenizer([text], vocab_size=num_fixed_tokens() + 2)) == num_fixed_tokens() + 2
    everything = train_tokenizer([text], vocab_size=10_000)
    pieces = [everything.decode([token]) for token in everything.encode(text)]
    assert pieces == ["one", ", ", "two", "; ", "one", ", ", "two"]
    assert len(everything) < num_fixed_tokens() + 10


def test_lines_that_recur_are_common() -> None:
    rule, schema = "Open one chest only, please.", '{"name": "open", "least": 1}'
    texts = [f"{rule}\n{schema}\nTurns left: {n} of all {n}" for n in (3, 3, 4)]
    assert common_lines([*texts, "Places:\nOpen one"]) == [rule, schema]
    assert common_lines([texts[0]]) == []
    assert plain_tokenizer().encode("ab") == [*map(plain_tokenizer().convert_tokens_to_ids, "ab")]


def test_the_help_has_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "new-model", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    for name, default in asdict(NewModelConfig()).items():
        key = f"{name}: " if name != "seed" else "--seed N "
        text = told.partition(f" {key}")[2]
        assert text and (default is None or f"({default:g})" in text), name


def test_the_command_writes_and_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = [f"--set={name}={value}" for name, value in SMALL.items()]
    path = tmp_path / "model"
    assert main(["train", "new-model", str(path), "--envs", ENVS[1], *small, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["folder"] == str(path) and made["num_parameters"] > 1000
    assert len(AutoTokenizer.from_pretrained(path)) == made["vocab_size"]
    assert main(["train", "new-model", str(path), "--envs", ENVS[1], *small]) == 2
    assert "exists and is not an empty folder" in capsys.readouterr().err

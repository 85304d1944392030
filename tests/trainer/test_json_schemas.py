"""The JSON Schemas of TOML files: what is committed, what they allow and refuse."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from katgym_trainer.config.json_schema import make_schemas

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "trainer/katgym_trainer/schemas"
SCHEMAS = make_schemas()
VALIDATORS = {name: jsonschema.Draft202012Validator(made) for name, made in SCHEMAS.items()}


def kind_of(raw: dict[str, Any], path: Path) -> str:
    """Return the name of the schema for a file that a guide or an example shows."""
    if "stage" in raw:
        return "train-stages.json"
    if path.stem in ("sft", "rft"):
        return f"train-{path.stem}.json"
    return "train-sft.json" if "data" in raw else "train-rl.json"


def shown() -> list[tuple[Path, str]]:
    """Return every whole TOML file of the examples and the guides."""
    texts = [(path, path.read_text()) for path in (ROOT / "trainer/examples").glob("*.toml")]
    for path in (ROOT / "docs/guides").glob("train*.md"):
        blocks = re.findall(r"^```toml\n(.*?)^```", path.read_text(), flags=re.M | re.S)
        texts += [(path, block) for block in blocks if block.startswith("[model]")]
    return sorted(texts)


def test_the_committed_schemas_are_what_the_classes_make(subtests: pytest.Subtests) -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*SCHEMAS}
    for name, made in SCHEMAS.items():
        with subtests.test(name=name):
            committed = json.loads((FOLDER / name).read_text())
            assert committed == made, "write it anew: python docs/make_schemas.py"
            jsonschema.Draft202012Validator.check_schema(committed)


def test_what_guides_and_examples_show_is_valid(subtests: pytest.Subtests) -> None:
    texts = shown()
    assert len(texts) > 9
    for path, text in texts:
        with subtests.test(path=path.name, text=text):
            raw = tomllib.loads(text)
            VALIDATORS[kind_of(raw, path)].validate(raw)


def test_a_key_has_the_fields_type_bounds_default_and_documentation() -> None:
    rollouts = SCHEMAS["train-rl.json"]["properties"]["rollouts"]["properties"]
    assert rollouts["group_size"] == {
        "type": "integer", "minimum": 2, "description": "Rollouts of a group.", "default": 8,
    }  # fmt: skip
    assert rollouts["stale"]["enum"] == ["wait", "drop", "partial"]
    train = SCHEMAS["train-rl.json"]["properties"]["train"]["properties"]
    assert train["learning_rate"]["exclusiveMinimum"] == 0 and "temperature" not in train
    assert train["lora_targets"]["items"] == {"type": "string", "minLength": 1}
    sections = SCHEMAS["train-rl.json"]["properties"]
    assert sections["checkpoint"]["properties"]["every_steps"]["default"] == 10


def test_mistakes_are_refused(subtests: pytest.Subtests) -> None:
    for name, change in [
        ("train-sft.json", {"modle": {}}),
        ("train-sft.json", {"model": {"pth": "m"}}),
        ("train-sft.json", {"train": {"num_steps": 0}}),
        ("train-sft.json", {"train": {"learning_rat": 1.0}}),
        ("train-sft.json", {"data": {"oracle": {"num_tasks": 3}}}),
        ("train-rl.json", {"envs": [{"weight": 1.0}]}),
        ("train-rl.json", {"policy": {"servers": [{"tags": ["trian"]}]}}),
        ("train-rl.json", {"track": [{"mode": "offline"}]}),
    ]:
        with subtests.test(change=change):
            right = {"model": {"path": "m"}, "track": [{"name": "wandb", "mode": "offline"}]}
            if name == "train-sft.json":
                right["data"] = {"rollouts": ["a"]}
            VALIDATORS[name].validate(right)
            with pytest.raises(jsonschema.ValidationError):
                VALIDATORS[name].validate({**right, **change})

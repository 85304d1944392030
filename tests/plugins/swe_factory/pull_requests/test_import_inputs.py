"""What an import is given in files: the tracker's dump, recipes, and filters with their schema."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pull_repository import PullRepository

import katgym_plugin_swe_factory
from katgym.config.sections import names
from katgym.errors import UsageError
from katgym_plugin_swe_factory.history.tracker_dump import read_dump
from katgym_plugin_swe_factory.pull_requests.environment import Recipes, find_declared, read_recipes
from katgym_plugin_swe_factory.pull_requests.filters_schema import make_schemas
from katgym_plugin_swe_factory.pull_requests.import_config import FilterConfig

SCHEMA = make_schemas()["filters.json"]
FOLDER = Path(katgym_plugin_swe_factory.__file__).parent / "schemas"
GUIDE = Path(__file__).parents[4] / "docs/guides/swe-from-pull-requests.md"
DUMPS = [
    ("repository.json", "{", "repository.json"),
    ("repository.json", "{}", "full_name"),
    ("repository.json", '{"full_name": "../x/y"}', "'owner/name'"),
    ("pulls.jsonl", '{"number": 1}\n{"number": "x"}\n', r"line 2: .*\$\.number"),
    ("pulls.jsonl", '{"number": 1}\n{"number": 1}\n', "line 2: number 1 occurs twice"),
    ("pulls.jsonl", '{"number": 1, "merged_at": "soon"}\n', r"line 1: .*\$\.merged_at"),
    ("pulls.jsonl", "[1]\n", "line 1: a row is a JSON object"),
    ("issues.jsonl", "nope\n", "line 1: not JSON"),
    ("issues.jsonl", None, "holds neither issues.jsonl nor issues.json"),
]


def test_a_broken_dump_is_named_by_file_and_line(
    sound_pull: PullRepository, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for number, (name, text, told) in enumerate(DUMPS):
        dump = sound_pull.told_otherwise(tmp_path / str(number)).write_dump()
        if text is None:
            (dump / name).unlink()
        else:
            (dump / name).write_text(text)
        with subtests.test(told), pytest.raises(UsageError, match=told):
            read_dump(dump)


def test_issues_that_are_pull_requests_are_no_issues(
    sound_pull: PullRepository, tmp_path: Path
) -> None:
    made = sound_pull.told_otherwise(tmp_path)
    made.issue(2, pull_request={"url": "..."})
    assert set(read_dump(made.write_dump()).issues) == {1}


def test_requirements_are_read_off_the_settings_without_addresses() -> None:
    files = {
        "pyproject.toml": b"""
[project]
name = "Word-Kit"
dependencies = ["attrs>=23", "evil @ https://x/y.whl", "./here", "word_kit"]
[project.optional-dependencies]
test = ["pytest-cov", "pytest>=7", "hypothesis==6.0 ; python_version > '3'", "word-kit[extra]"]
docs = ["sphinx"]
[dependency-groups]
dev = ["Attrs", "idna"]
""",
        "setup.cfg": b"[options]\ninstall_requires =\n    six\n    # none\n",
    }
    found = find_declared(files)
    assert found == ["attrs>=23", "hypothesis==6.0 ; python_version > '3'", "idna", "six"]
    recipe = Recipes(is_declared_installed=True, requirements=("idna==3.10",)).of(1, files)
    assert recipe.requirements[0].startswith("pytest==")
    assert "idna==3.10" in recipe.requirements
    assert "idna" not in recipe.requirements
    assert Recipes().of(1, files).requirements == (recipe.requirements[0],)


def test_a_broken_recipe_file_is_named(tmp_path: Path, subtests: pytest.Subtests) -> None:
    path = tmp_path / "recipes.json"
    for told, text in {
        "holds no recipes": "{",
        "keyed by numbers": '{"pulls": {"x": {}}}',
        "'venv' or 'image'": '{"default": {"kind": "conda"}}',
        "needs an image": '{"default": {"kind": "image"}}',
        "python": '{"default": {"python": "3.11"}}',
    }.items():
        path.write_text(text)
        with subtests.test(told), pytest.raises(UsageError, match=told):
            read_recipes(path)


def test_a_recipe_of_the_pull_goes_before_the_default(tmp_path: Path) -> None:
    path = tmp_path / "recipes.json"
    path.write_text(
        '{"default": {"requirements": ["a==1"]}, "pulls": {"2": {"requirements": ["b==1"]}}}'
    )
    recipes = replace(read_recipes(path), requirements=("c==1",))
    assert recipes.of(2, {}).requirements == ("b==1",)
    assert recipes.of(3, {}).requirements == ("a==1",)


def as_editors_see(text: str) -> Any:
    """Return a TOML file as JSON, in which a date is a text."""
    return json.loads(json.dumps(tomllib.loads(text), default=str))


def test_the_committed_schema_is_what_the_class_makes() -> None:
    assert [path.name for path in FOLDER.iterdir()] == ["filters.json"]
    committed = json.loads((FOLDER / "filters.json").read_text())
    assert committed == SCHEMA, "write it anew: python docs/make_schemas.py"
    jsonschema.Draft202012Validator.check_schema(committed)


def test_what_the_guide_shows_is_valid() -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```", GUIDE.read_text(), flags=re.M | re.S)
    jsonschema.validate(as_editors_see(text), SCHEMA)


def test_a_key_has_the_fields_type_default_and_documentation() -> None:
    keys = SCHEMA["properties"]
    assert keys["min_issue_words"] == {
        "type": "integer", "description": "Words of prose among them.", "default": 8,
    }  # fmt: skip
    assert keys["min_python_share"]["type"] == "number" and "default" not in keys["min_stars"]
    assert keys["since"]["format"] == "date"


def test_mistakes_are_refused() -> None:
    for text in ("min_star = 1", "max_lines = 1.5", "since = 2025", "skipped_labels = 'chore'"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(as_editors_see(text), SCHEMA)


def test_the_docs_name_every_key_of_the_filters() -> None:
    text = GUIDE.read_text()
    for name in (*names(FilterConfig), "scope", "min_killed_share", "--install-declared"):
        assert f"`{name}" in text or f" {name}=" in text, name

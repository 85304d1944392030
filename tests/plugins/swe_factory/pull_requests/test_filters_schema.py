"""The JSON Schema of the filters' file: what is committed, what it allows and refuses."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import katgym_plugin_swe_factory
from katgym_plugin_swe_factory.pull_requests.filters_schema import make_schemas

SCHEMA = make_schemas()["filters.json"]
FOLDER = Path(katgym_plugin_swe_factory.__file__).parent / "schemas"


def as_editors_see(text: str) -> Any:
    """Return a TOML file as JSON, in which a date is a text."""
    return json.loads(json.dumps(tomllib.loads(text), default=str))


def test_the_committed_schema_is_what_the_class_makes() -> None:
    assert [path.name for path in FOLDER.iterdir()] == ["filters.json"]
    committed = json.loads((FOLDER / "filters.json").read_text())
    assert committed == SCHEMA, "write it anew: python docs/make_schemas.py"
    jsonschema.Draft202012Validator.check_schema(committed)


def test_what_the_guide_shows_is_valid() -> None:
    guide = Path(__file__).parents[4] / "docs/guides/swe-from-pull-requests.md"
    (text,) = re.findall(r"^```toml\n(.*?)^```", guide.read_text(), flags=re.M | re.S)
    jsonschema.validate(as_editors_see(text), SCHEMA)


def test_a_key_has_the_fields_type_default_and_documentation() -> None:
    keys = SCHEMA["properties"]
    assert keys["min_issue_words"] == {
        "type": "integer", "description": "Words of prose among them.", "default": 8,
    }  # fmt: skip
    assert keys["min_python_share"]["type"] == "number" and "default" not in keys["min_stars"]
    assert keys["since"]["format"] == "date"


@pytest.mark.parametrize(
    "text", ["min_star = 1", "max_lines = 1.5", "since = 2025", "skipped_labels = 'chore'"]
)
def test_mistakes_are_refused(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(as_editors_see(text), SCHEMA)

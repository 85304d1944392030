"""Requirements and recipes of a pull request: read off its settings, or given in a file."""

from dataclasses import replace
from pathlib import Path

import pytest

from katgym.errors import UsageError
from katgym_plugin_swe_factory.pull_requests.environment import Recipes, find_declared, read_recipes


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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "holds no recipes"),
        ('{"pulls": {"x": {}}}', "keyed by numbers"),
        ('{"default": {"kind": "conda"}}', "'venv' or 'image'"),
        ('{"default": {"kind": "image"}}', "needs an image"),
        ('{"default": {"python": "3.11"}}', "python"),
    ],
)
def test_a_broken_recipe_file_is_named(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "recipes.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=told):
        read_recipes(path)


def test_a_recipe_of_the_pull_goes_before_the_default(tmp_path: Path) -> None:
    path = tmp_path / "recipes.json"
    path.write_text(
        '{"default": {"requirements": ["a==1"]}, "pulls": {"2": {"requirements": ["b==1"]}}}'
    )
    recipes = replace(read_recipes(path), requirements=("c==1",))
    assert recipes.of(2, {}).requirements == ("b==1",)
    assert recipes.of(3, {}).requirements == ("a==1",)

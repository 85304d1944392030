"""Prepares pull requests of made repositories without running anything, for the tests here."""

from typing import Any

from pull_repository import PullRepository

from katgym_plugin_swe_factory.history.git_clone import GitClone
from katgym_plugin_swe_factory.history.tracker_dump import read_dump
from katgym_plugin_swe_factory.pull_requests.environment import Recipes
from katgym_plugin_swe_factory.pull_requests.import_config import FilterConfig
from katgym_plugin_swe_factory.pull_requests.preparation import PullPreparation
from katgym_plugin_swe_factory.pull_requests.prepared_pull import PreparedPull
from katgym_plugin_swe_factory.pull_requests.pull_filters import Refusal


def prepare(
    made: PullRepository, number: int, filters: FilterConfig | None = None, **more: Any
) -> PreparedPull | Refusal:
    dump = read_dump(made.write_dump())
    filters = filters or FilterConfig()
    preparation = PullPreparation(GitClone(made.clone), dump, filters, Recipes(), **more)
    return preparation.prepare(number)


def prepared(made: PullRepository, number: int, **more: Any) -> PreparedPull:
    found = prepare(made, number, **more)
    assert isinstance(found, PreparedPull), found
    return found


def refused(made: PullRepository, number: int, **more: Any) -> str:
    found = prepare(made, number, **more)
    assert isinstance(found, Refusal), found
    return f"{found.filter}: {found.reason}"

"""Prepares pull requests of made repositories without running anything, for the tests here."""

from typing import Any

import pytest
from pull_play import config_of
from pull_repository import PullRepository

from katgym.sandbox.backends import backend
from katgym_plugin_swe_factory.making.trial import Refused
from katgym_plugin_swe_factory.pull_requests.prepared_pull import PreparedPull
from katgym_plugin_swe_factory.pull_requests.pull_source import PullSource


def prepare(made: PullRepository, number: int, **more: Any) -> PreparedPull:
    source = PullSource(config_of(made, **more), backend("local"))
    return source.prepare(next(p for p in source.candidates() if p.number == number))


def refused(made: PullRepository, number: int, **more: Any) -> str:
    with pytest.raises(Refused) as caught:
        prepare(made, number, **more)
    return str(caught.value)

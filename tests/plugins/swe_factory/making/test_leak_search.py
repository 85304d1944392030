"""What is searched for: lines of hidden tests, those that a class inherits among them."""

from __future__ import annotations

from collections.abc import Mapping

from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.hidden import HiddenTests, TestFunction
from katgym_envs.swe.row import EnvironmentRecipe
from katgym_envs.swe.swe_task import Workspace
from katgym_plugin_swe_factory.checking.leak_search import find_shown_tests, find_wanted

SOURCE = b"""
class Base:
    def test_shared(self):
        assert self.double(4) == 8

class TestIt(Base):
    def test_own(self):
        assert self.double(5) == 10
"""


def make_task(base_files: Mapping[str, bytes]) -> GradedTask:
    names = ("TestIt::test_shared", "TestIt::test_own")
    functions = tuple(TestFunction(path="t.py", qualname=name) for name in names)
    hidden = HiddenTests(
        instance_id="x",
        gold_patch="",
        fail_to_pass=tuple(n for f in functions for n in f.node_ids()),
        pass_to_pass=(),
        files={"t.py": SOURCE},
        functions=functions,
    )
    return GradedTask(
        hidden=hidden,
        base_files=base_files,
        workspace=Workspace(layer=None, python=None),
        env=EnvironmentRecipe(requirements=()),
    )


def test_an_inherited_test_is_searched_for_by_its_lines() -> None:
    assert find_wanted(make_task({})).lines == {
        "assert self.double(4) == 8": "a line of a hidden test",
        "assert self.double(5) == 10": "a line of a hidden test",
    }


def test_lines_of_the_base_state_are_not_searched_for() -> None:
    assert find_wanted(make_task({"copy.py": SOURCE})).lines == {}


def test_only_a_function_of_its_own_class_is_searched_for_whole() -> None:
    assert find_shown_tests(make_task({"copy.py": SOURCE})) == [
        "hidden test 't.py::TestIt::test_own' can be read in 'copy.py'"
    ]

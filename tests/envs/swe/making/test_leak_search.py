"""What is searched for: lines of hidden tests, those that a class inherits among them."""

from __future__ import annotations

from katgym_envs.swe.hidden import HiddenTests, TestFunction
from katgym_envs.swe.making.leak_search import _hidden_functions, _hidden_lines

SOURCE = b"""
class Base:
    def test_shared(self):
        assert self.double(4) == 8

class TestIt(Base):
    def test_own(self):
        assert self.double(5) == 10
"""


def test_an_inherited_test_is_searched_for_by_its_lines() -> None:
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
    assert set(_hidden_lines(hidden)) == {
        "assert self.double(4) == 8",
        "assert self.double(5) == 10",
    }
    assert set(_hidden_functions(hidden)) == {"t.py::TestIt::test_own"}

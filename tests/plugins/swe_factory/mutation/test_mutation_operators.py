"""Every operator on a small source: exactly these mutants, in this order."""

from __future__ import annotations

import ast

import pytest

from katgym_plugin_swe_factory.mutation import OPERATORS, find_sites, mutate

CASES = [
    ("argument_swap", "f(a, b, b, *c)", ["f(b, a, b, *c)"]),
    ("argument_swap", "isinstance(a, b)", []),
    ("argument_swap", "f(a, b=1)", []),
    ("arithmetic", "x = a + b", ["x = a - b"]),
    ("arithmetic", "x = a*b", ["x = a//b"]),
    ("arithmetic", "x <<= 1\nx &= y", ["x <<= 1\nx |= y"]),
    ("arithmetic", "x = 'a' + b", []),
    ("boolean", "x = a and b", ["x = a or b"]),
    ("boolean", "x = a or b", ["x = a and b"]),
    ("branch_swap", "x = a if c else b", ["x = b if c else a"]),
    ("branch_swap", "if c:\n    f()\nelse:\n    g()\n", ["if c:\n    g()\nelse:\n    f()\n"]),
    ("branch_swap", "if c:\n    f()\n", []),
    ("compare", "x = a < b", ["x = a <= b", "x = a > b"]),
    ("compare", "x = a  ==  b", ["x = a  !=  b"]),
    ("compare", "x = a not in b", ["x = a in b"]),
    ("compare", "x = a is None", ["x = a is not None"]),
    ("condition_negate", "if a:\n    f()\n", ["if not a:\n    f()\n"]),
    ("condition_negate", "if(a and b):\n    f()\n", ["if not (a and b):\n    f()\n"]),
    ("condition_negate", "while f():\n    g()\n", ["while not f():\n    g()\n"]),
    ("condition_negate", "x = [i for i in y if i]", ["x = [i for i in y if not i]"]),
    ("condition_negate", "if a == b:\n    f()\n", []),
    ("condition_remove", "if a:\n    f()\n", ["", "f()\n"]),
    (
        "condition_remove",
        "if a:\n    f()\nelif b:\n    g()\nelse:\n    h()\n",
        ["f()\n", "if a:\n    f()\nelse:\n    h()\n"],
    ),
    ("constant", "x = 7", ["x = 8", "x = 6"]),
    ("constant", "x = 0", ["x = 1"]),
    ("constant", "x = 2.5", ["x = 5.0"]),
    ("constant", "x = True", ["x = False"]),
    ("constant", "x = 'word'", ["x = 'wod'", "x = 'woRd'"]),
    ("constant", "x = ''", ["x = ' '"]),
    ("constant", "x = ','", ["x = ';'"]),
    ("default", "def f(a, b=2, *, c=None):\n    pass\n", [
        "def f(a, b=3, *, c=None):\n    pass\n",
        "def f(a, b=1, *, c=None):\n    pass\n",
        "def f(a, b=2, *, c=0):\n    pass\n",
    ]),
    ("exception", "raise ValueError('a')", ["raise TypeError('a')"]),
    ("exception", "raise StrangeError", ["raise ValueError"]),
    ("exception", "raise NotImplementedError", []),
    (
        "exception",
        "try:\n    f()\nexcept (KeyError, OSError):\n    g()\n",
        [
            "try:\n    f()\nexcept KeyError:\n    g()\n",
            "try:\n    f()\nexcept OSError:\n    g()\n",
        ],
    ),
    ("keyword_drop", "f(a, b=1)", ["f(a)"]),
    ("keyword_drop", "f(b=1, c=2)", ["f(c=2)", "f(b=1)"]),
    (
        "loop_exit",
        "for a in b:\n    break\n",
        ["for a in b:\n    continue\n", "for a in b:\n    pass\n"],
    ),
    ("method_swap", "x = a.startswith(b)", ["x = a.endswith(b)"]),
    ("method_swap", "x = min(a)", ["x = max(a)"]),
    ("method_swap", "x = other(a)", []),
    ("not_remove", "x = not a", ["x = a"]),
    ("not_remove", "x = not (a or b) and c", ["x = (a or b) and c"]),
    ("not_remove", "x = -a", ["x = a"]),
    ("not_remove", "x = -1", []),
    ("off_by_one", "x = a[1]", ["x = a[2]", "x = a[0]"]),
    ("off_by_one", "x = a[0]", ["x = a[1]"]),
    ("off_by_one", "x = a[-1]", ["x = a[0]", "x = a[-2]"]),
    ("off_by_one", "x = a[:n]", ["x = a[:n + 1]", "x = a[:n - 1]"]),
    ("off_by_one", "x = range(n)", ["x = range(n + 1)", "x = range(n - 1)"]),
    ("operand_swap", "x = a - b", ["x = b - a"]),
    ("operand_swap", "x = 'a' + b", ["x = b + 'a'"]),
    ("operand_swap", "x = a * b", []),
    ("return", "def f():\n    return a\n", ["def f():\n    return None\n"]),
    ("return", "def f():\n    return a, b\n", [
        "def f():\n    return None\n",
        "def f():\n    return b, a\n",
    ]),
    ("return", "def f():\n    return a == b\n", [
        "def f():\n    return None\n",
        "def f():\n    return not a == b\n",
    ]),
    ("return", "def f():\n    return\n", []),
    ("statement_remove", "def f(a):\n    g()\n    return a\n", ["def f(a):\n    return a\n"]),
    ("statement_remove", "def f(a):\n    a = a or 1\n", ["def f(a):\n    pass\n"]),
    ("statement_remove", "def f():\n    new = 1\n    return new\n", []),
    ("wrapper_remove", "with a:\n    f()\n", ["f()\n"]),
    ("wrapper_remove", "with a as b:\n    f()\n", []),
    ("wrapper_remove", "try:\n    f()\nfinally:\n    g()\n", ["f()\ng()\n"]),
]  # fmt: skip
ATTRIBUTES = (
    "class A:\n    def __init__(self):\n        self.a = 1\n        self.b = 2\n\n"
    "    def f(self):\n        return self.a\n"
)


def mutants(source: str, operator: str) -> list[str]:
    sites = [site for site in find_sites(source.encode(), "m.py") if site.operator == operator]
    return [mutate(source.encode(), spec).decode() for site in sites for spec in site.specs()]


@pytest.mark.parametrize(("operator", "source", "expected"), CASES)
def test_operator_makes_exactly_these(operator: str, source: str, expected: list[str]) -> None:
    assert mutants(source, operator) == expected
    for mutant in expected:
        ast.parse(mutant)


def test_attribute_swap_takes_another_attribute_of_init() -> None:
    found = mutants(ATTRIBUTES, "attribute_swap")
    assert found[-1] == ATTRIBUTES.replace("return self.a", "return self.b")


def test_every_operator_has_a_case() -> None:
    names = {name for operators in OPERATORS.values() for name, _ in operators}
    assert len(names) == 20
    assert {operator for operator, _, expected in CASES if expected} | {"attribute_swap"} == names


@pytest.mark.parametrize(
    "source",
    [
        '"""1 + 1"""\n',
        'def f():\n    """Return 1 if True."""\n',
        "def f(a: Literal[1]) -> Optional[1 + 2]:\n    pass\n",
        "__all__ = ['a', 'b']\n__version__ = '1.2'\n",
        "logger.warning('text %d', 1)\n",
        "warnings.warn('text', stacklevel=2)\n",
        "print('text', 1)\n",
        "if TYPE_CHECKING:\n    x = 1\n",
        "if __name__ == '__main__':\n    main(1)\n",
        "try:\n    import a\nexcept ImportError:\n    a = 1\n",
        "@decorated(1)\ndef f():\n    pass\n",
        "@overload\ndef f(a=1):\n    pass\n",
        "assert 1 < 2\n",
        "x = f'{1 + 1}'\n",
        "T = TypeVar('T', bound=1)\n",
        "from a import b as c\n",
    ],
)
def test_nothing_is_changed_where_no_test_could_see_it(source: str) -> None:
    assert find_sites(source.encode(), "m.py") == ()


def test_text_of_an_exception_stays() -> None:
    assert mutants("raise ValueError('text', 1)", "constant") == []

"""Every operator makes exactly its mutants; sites are found again; all else stays as it was."""

from __future__ import annotations

import ast
import itertools
import os
import re
import subprocess
import sys
import warnings

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import some_of

from katgym.errors import UsageError
from katgym_envs.swe.packages import open_toy
from katgym_plugin_swe_factory.mutation import OPERATORS, find_sites, mutate
from katgym_plugin_swe_factory.mutation.site import MutationSpec

TOY = open_toy()
SOURCE = TOY.files["parcelkit/rates.py"]
EXPRESSIONS = st.recursive(
    st.sampled_from(["x", "1", "-1", "'ab'", "2.5", "True", "None", "self.a", "f'{x}'", "b'q'"]),
    lambda inner: st.one_of(
        st.builds("{}{}{}".format, inner, st.sampled_from(
            ["+", " - ", "*", " < ", " in ", " and ", " or ", "==", "**", " is not "]), inner),
        st.builds("not {}".format, inner),
        st.builds("-{}".format, inner),
        st.builds("({})".format, inner),
        st.builds("({})if({})else({})".format, inner, inner, inner),
        st.builds("({}) if {} else {}".format, inner, inner, inner),
        st.builds("f({}, {}, k={})".format, inner, inner, inner),
        st.builds("x[{}:{}]".format, inner, inner),
        st.builds("x[{}]".format, inner),
        st.builds("range({})".format, inner),
        st.builds("[{} for x in y if({})]".format, inner, inner),
    ),
    max_leaves=6,
)  # fmt: skip
LINES = st.one_of(
    st.builds("return {}".format, EXPRESSIONS),
    st.builds("return({})".format, EXPRESSIONS),
    st.builds("return-({})".format, EXPRESSIONS),
    st.builds("x = {}".format, EXPRESSIONS),
    st.builds("x += {}; x -= 1".format, EXPRESSIONS),
    st.builds("raise(ValueError)".format),
    st.builds("if({}): pass".format, EXPRESSIONS),
    st.builds("while {}:\n        break".format, EXPRESSIONS),
    st.builds("if {}:\n        x = 1\n    elif not({}):\n        f()\n    else: x".format,
              EXPRESSIONS, EXPRESSIONS),
    st.builds("try: f({})\n    except(KeyError): pass\n    finally: g()".format, EXPRESSIONS),
    st.builds("with {}: f()".format, EXPRESSIONS),
    st.builds("g = lambda x={}: {}".format, EXPRESSIONS, EXPRESSIONS),
    st.just("del x"),
)  # fmt: skip


def is_valid(source: bytes) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # `1 is not 2`
        try:
            compile(source, "m.py", "exec")
        except SyntaxError:
            return False
    return True


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(LINES, min_size=1, max_size=3), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_every_site_gives_valid_code_that_differs(
    lines: list[str], newline: str, has_last_newline: bool
) -> None:
    text = "def f(x, self=None):\n    " + "\n    ".join(lines) + "\n" * has_last_newline
    source = text.replace("\n", newline).encode()
    if not is_valid(source):
        return
    try:
        sites = find_sites(source, "m.py")
    except UsageError as e:
        assert "at least one space" in str(e)  # libcst is stricter than Python
        return
    for site in sites:
        made = [mutate(source, spec) for spec in site.specs()]
        assert len({source, *made}) == len(made) + 1
        assert all(is_valid(mutant) for mutant in made)


def test_mutants_of_a_package_are_valid_and_differ() -> None:
    sources = {path: TOY.files[path] for path in some_of(TOY.product, 3)}
    made = [
        (source, mutate(source, spec))
        for path, source in sources.items()
        for site in find_sites(source, path)
        for spec in site.specs()
    ]
    assert len(made) > 100
    for source, mutant in made:
        assert ast.dump(ast.parse(mutant)) != ast.dump(ast.parse(source))


def test_constant_below_many_signs_is_found() -> None:
    assert [s.operator for s in find_sites(b"x = not not not True\n", "m.py")] == [
        "not_remove",
        "not_remove",
        "not_remove",
        "constant",
    ]


def test_spec_survives_json() -> None:
    for site in find_sites(SOURCE, "rates.py"):
        for spec in site.specs():
            again = msgspec.json.decode(msgspec.json.encode(spec), type=MutationSpec)
            assert mutate(SOURCE, again) == mutate(SOURCE, spec)


@pytest.mark.slow
def test_another_process_finds_the_same_sites_and_bytes() -> None:
    program = (
        "import hashlib, sys\n"
        "from katgym_plugin_swe_factory.mutation import find_sites, mutate\n"
        "source = sys.stdin.buffer.read()\n"
        "digest = hashlib.sha256()\n"
        "for site in find_sites(source, 'm.py'):\n"
        "    digest.update(repr(site).encode())\n"
        "    for spec in site.specs():\n"
        "        digest.update(mutate(source, spec))\n"
        "print(digest.hexdigest())\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program], input=SOURCE, capture_output=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1


def test_sites_are_in_order_and_tell_where_they_are() -> None:
    sites = find_sites(b"class A:\n    def f(self):\n        return 1 < 2\n", "a.py")
    places = [(site.operator, site.location, site.qualname) for site in sites]
    assert places == [
        ("return", "3:8-3:20 Return", "A.f"),
        ("constant", "3:15-3:16 Integer", "A.f"),
        ("compare", "3:16-3:20 ComparisonTarget", "A.f"),
        ("constant", "3:19-3:20 Integer", "A.f"),
    ]


def test_everything_else_stays_byte_by_byte() -> None:
    source = b"\xef\xbb\xbf# a\r\n\r\nx = 1  # b\r\ny=2 # \xc3\xa9\r\n\r\n# c"
    site = next(site for site in find_sites(source, "m.py") if site.line == 4)
    assert mutate(source, site.spec(0)) == source.replace(b"y=2", b"y=3")


def test_encoding_of_the_module_is_kept() -> None:
    source = b"# coding: latin-1\nx = '\xe9abc'\n"
    site = find_sites(source, "m.py")[0]
    assert mutate(source, site.spec(0)) == b"# coding: latin-1\nx = '\xe9ac'\n"


SPEC = MutationSpec(file="m.py", operator="constant", location="1:4-1:5 Integer", variant=0)


WRONG_SPECS: dict[str, dict[str, object]] = {
    "unknown mutation operator 'constnt'. Did you mean 'constant'": {"operator": "constnt"},
    "changes nothing at '1:4-1:6 Integer' of 'm.py'": {"location": "1:4-1:6 Integer"},
    "has variants 0 to 1, got 2": {"variant": 2},
    "has variants 0 to 1, got -1": {"variant": -1},
}


def test_wrong_specs_are_named(subtests: pytest.Subtests) -> None:
    for message, change in WRONG_SPECS.items():
        with subtests.test(message), pytest.raises(UsageError, match=re.escape(message)):
            mutate(b"x = 1\n", msgspec.structs.replace(SPEC, **change))


def test_what_is_not_python_is_refused(subtests: pytest.Subtests) -> None:
    for source in (
        b"def",
        b"# coding: nonsense\n",
        b"x = '\xff'\n",
        b"[x for x in y if(lambda: x)]",
    ):
        with subtests.test(source=source), pytest.raises(UsageError, match="not a Python module"):
            find_sites(source, "m.py")


def test_module_that_would_not_be_written_back_equally_is_refused() -> None:
    with pytest.raises(UsageError, match="writes it differently"):
        find_sites(b"x = 1\n\n  # end", "m.py")


# ---- every operator on a small source: exactly these mutants, in this order

CASES = {
    ("argument_swap", "f(a, b, b, *c)"): ["f(b, a, b, *c)"],
    ("argument_swap", "isinstance(a, b)"): [],
    ("argument_swap", "f(a, b=1)"): [],
    ("arithmetic", "x = a + b"): ["x = a - b"],
    ("arithmetic", "x = a*b"): ["x = a//b"],
    ("arithmetic", "x <<= 1\nx &= y"): ["x <<= 1\nx |= y"],
    ("arithmetic", "x = 'a' + b"): [],
    ("boolean", "x = a and b"): ["x = a or b"],
    ("boolean", "x = a or b"): ["x = a and b"],
    ("branch_swap", "x = a if c else b"): ["x = b if c else a"],
    ("branch_swap", "if c:\n    f()\nelse:\n    g()\n"): ["if c:\n    g()\nelse:\n    f()\n"],
    ("branch_swap", "if c:\n    f()\n"): [],
    ("compare", "x = a < b"): ["x = a <= b", "x = a > b"],
    ("compare", "x = a  ==  b"): ["x = a  !=  b"],
    ("compare", "x = a not in b"): ["x = a in b"],
    ("compare", "x = a is None"): ["x = a is not None"],
    ("condition_negate", "if a:\n    f()\n"): ["if not a:\n    f()\n"],
    ("condition_negate", "if(a and b):\n    f()\n"): ["if not (a and b):\n    f()\n"],
    ("condition_negate", "while f():\n    g()\n"): ["while not f():\n    g()\n"],
    ("condition_negate", "x = [i for i in y if i]"): ["x = [i for i in y if not i]"],
    ("condition_negate", "if a == b:\n    f()\n"): [],
    ("condition_remove", "if a:\n    f()\n"): ["", "f()\n"],
    ("condition_remove", "if a:\n    f()\nelif b:\n    g()\nelse:\n    h()\n"): [
        "f()\n",
        "if a:\n    f()\nelse:\n    h()\n",
    ],
    ("constant", "x = 7"): ["x = 8", "x = 6"],
    ("constant", "x = 0"): ["x = 1"],
    ("constant", "x = 2.5"): ["x = 5.0"],
    ("constant", "x = True"): ["x = False"],
    ("constant", "x = 'word'"): ["x = 'wod'", "x = 'woRd'"],
    ("constant", "x = ''"): ["x = ' '"],
    ("constant", "x = ','"): ["x = ';'"],
    ("default", "def f(a, b=2, *, c=None):\n    pass\n"): [
        "def f(a, b=3, *, c=None):\n    pass\n",
        "def f(a, b=1, *, c=None):\n    pass\n",
        "def f(a, b=2, *, c=0):\n    pass\n",
    ],
    ("exception", "raise ValueError('a')"): ["raise TypeError('a')"],
    ("exception", "raise StrangeError"): ["raise ValueError"],
    ("exception", "raise NotImplementedError"): [],
    ("exception", "try:\n    f()\nexcept (KeyError, OSError):\n    g()\n"): [
        "try:\n    f()\nexcept KeyError:\n    g()\n",
        "try:\n    f()\nexcept OSError:\n    g()\n",
    ],
    ("keyword_drop", "f(a, b=1)"): ["f(a)"],
    ("keyword_drop", "f(b=1, c=2)"): ["f(c=2)", "f(b=1)"],
    ("loop_exit", "for a in b:\n    break\n"): [
        "for a in b:\n    continue\n",
        "for a in b:\n    pass\n",
    ],
    ("method_swap", "x = a.startswith(b)"): ["x = a.endswith(b)"],
    ("method_swap", "x = min(a)"): ["x = max(a)"],
    ("method_swap", "x = other(a)"): [],
    ("not_remove", "x = not a"): ["x = a"],
    ("not_remove", "x = not (a or b) and c"): ["x = (a or b) and c"],
    ("not_remove", "x = -a"): ["x = a"],
    ("not_remove", "x = -1"): [],
    ("off_by_one", "x = a[1]"): ["x = a[2]", "x = a[0]"],
    ("off_by_one", "x = a[0]"): ["x = a[1]"],
    ("off_by_one", "x = a[-1]"): ["x = a[0]", "x = a[-2]"],
    ("off_by_one", "x = a[:n]"): ["x = a[:n + 1]", "x = a[:n - 1]"],
    ("off_by_one", "x = range(n)"): ["x = range(n + 1)", "x = range(n - 1)"],
    ("operand_swap", "x = a - b"): ["x = b - a"],
    ("operand_swap", "x = 'a' + b"): ["x = b + 'a'"],
    ("operand_swap", "x = a * b"): [],
    ("return", "def f():\n    return a\n"): ["def f():\n    return None\n"],
    ("return", "def f():\n    return a, b\n"): [
        "def f():\n    return None\n",
        "def f():\n    return b, a\n",
    ],
    ("return", "def f():\n    return a == b\n"): [
        "def f():\n    return None\n",
        "def f():\n    return not a == b\n",
    ],
    ("return", "def f():\n    return\n"): [],
    ("statement_remove", "def f(a):\n    g()\n    return a\n"): ["def f(a):\n    return a\n"],
    ("statement_remove", "def f(a):\n    a = a or 1\n"): ["def f(a):\n    pass\n"],
    ("statement_remove", "def f():\n    new = 1\n    return new\n"): [],
    ("wrapper_remove", "with a:\n    f()\n"): ["f()\n"],
    ("wrapper_remove", "with a as b:\n    f()\n"): [],
    ("wrapper_remove", "try:\n    f()\nfinally:\n    g()\n"): ["f()\ng()\n"],
}
ATTRIBUTES = (
    "class A:\n    def __init__(self):\n        self.a = 1\n        self.b = 2\n\n"
    "    def f(self):\n        return self.a\n"
)


def mutants(source: str, operator: str) -> list[str]:
    sites = [site for site in find_sites(source.encode(), "m.py") if site.operator == operator]
    return [mutate(source.encode(), spec).decode() for site in sites for spec in site.specs()]


def test_operators_make_exactly_these() -> None:
    assert {case: mutants(case[1], case[0]) for case in CASES} == CASES
    for mutant in itertools.chain.from_iterable(CASES.values()):
        ast.parse(mutant)


def test_attribute_swap_takes_another_attribute_of_init() -> None:
    found = mutants(ATTRIBUTES, "attribute_swap")
    assert found[-1] == ATTRIBUTES.replace("return self.a", "return self.b")


def test_every_operator_has_a_case() -> None:
    names = {name for operators in OPERATORS.values() for name, _ in operators}
    assert len(names) == 20
    assert {operator for (operator, _), made in CASES.items() if made} | {"attribute_swap"} == names


UNSEEN = [
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
]


def test_nothing_is_changed_where_no_test_could_see_it() -> None:
    assert [source for source in UNSEEN if find_sites(source.encode(), "m.py")] == []
    assert mutants("raise ValueError('text', 1)", "constant") == []

"""Sites are found again from their specs; mutated sources are valid and differ in one place."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import warnings

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from katgym.errors import UsageError
from katgym_envs.swe.packages import open_toy
from katgym_plugin_swe_factory.mutation import find_sites, mutate
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


@pytest.mark.parametrize("path", TOY.product)
def test_mutants_of_a_package_are_valid_and_differ(path: str) -> None:
    source = TOY.files[path]
    for site in find_sites(source, path):
        for spec in site.specs():
            mutant = mutate(source, spec)
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operator": "constnt"}, "unknown mutation operator 'constnt'. Did you mean 'constant'"),
        ({"location": "1:4-1:6 Integer"}, "changes nothing at '1:4-1:6 Integer' of 'm.py'"),
        ({"variant": 2}, "has variants 0 to 1, got 2"),
        ({"variant": -1}, "has variants 0 to 1, got -1"),
    ],
)
def test_wrong_specs_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        mutate(b"x = 1\n", msgspec.structs.replace(SPEC, **change))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "source", [b"def", b"# coding: nonsense\n", b"x = '\xff'\n", b"[x for x in y if(lambda: x)]"]
)
def test_what_is_not_python_is_refused(source: bytes) -> None:
    with pytest.raises(UsageError, match="not a Python module that can be mutated"):
        find_sites(source, "m.py")


def test_module_that_would_not_be_written_back_equally_is_refused() -> None:
    with pytest.raises(UsageError, match="writes it differently"):
        find_sites(b"x = 1\n\n  # end", "m.py")

"""What the math verifier accepts, refuses and finds in a message; what it does with hostile text.

Not here: its worker processes (`test_verifier_workers.py`).
"""

import cmath
import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import some_of

from katgym_envs.math.verifier import (
    AnswerVerdict,
    Extraction,
    Method,
    Verifier,
    extract_final_answer,
    get_shared_verifier,
)

verify = get_shared_verifier().verify


class Pair(NamedTuple):
    """One line of a table: `=` right, `!` wrong, `?` right but refused."""

    mark: str
    answer: str
    gold: str


def read_pairs(name: str) -> list[Pair]:
    """Read a table beside this file; lines with `# ` name what follows."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").split("\n")
    rows = [(line[0], *line[2:].split("\t")) for line in lines if line and line[:2] != "# "]
    return [Pair(*row) for row in rows]


CASES = read_pairs("verifier_cases.txt")
WRITTEN_BEFOREHAND = read_pairs("verifier_pairs.txt")


def is_as_marked(mark: str, verdict: AnswerVerdict) -> bool:
    """Tell whether a verdict is right, and came about by reading both."""
    if mark == "=":
        return verdict.is_correct and verdict.method in (Method.EXACT, Method.SYMBOLIC)
    unread = {Method.TIMEOUT} if mark == "?" else {Method.TIMEOUT, Method.UNSUPPORTED_GOLD}
    return not verdict.is_correct and verdict.method not in unread


def mistakes(pairs: list[Pair]) -> list[tuple[Pair, AnswerVerdict]]:
    """Return the pairs that get another verdict than their mark says."""
    verdicts = [(pair, verify(pair.answer, pair.gold)) for pair in pairs]
    return [(pair, verdict) for pair, verdict in verdicts if not is_as_marked(pair.mark, verdict)]


# ---- answers and golds


def test_right_and_wrong_answers_of_every_kind_are_told_apart() -> None:
    assert len(CASES) > 600 and {pair.mark for pair in CASES} == {"=", "!"}
    assert mistakes(CASES) == []


def test_pairs_written_beforehand_are_told_apart() -> None:
    assert mistakes(some_of(WRITTEN_BEFOREHAND, 800)) == []


def test_right_pairs_that_are_refused_are_at_most_five_percent() -> None:
    num = {mark: sum(pair.mark == mark for pair in WRITTEN_BEFOREHAND) for mark in "=?!"}

    assert num["?"] <= 0.05 * (num["="] + num["?"])
    assert num["="] > 800 and num["!"] > 400


def test_gold_equals_itself_in_a_box_and_with_other_spacing() -> None:
    golds = sorted({pair.gold for pair in CASES})
    assert mistakes([Pair("=", rf"\boxed{{{gold}}}", gold) for gold in golds]) == []
    assert mistakes([Pair("=", f" ${gold}$ ", gold) for gold in golds]) == []


# ---- random values and expressions: the verdict is that of independent arithmetic


@pytest.fixture(scope="module")
def patient_verifier() -> Iterator[Verifier]:
    with Verifier(timeout_s=10) as opened:
        yield opened


rationals = st.fractions(min_value=-40, max_value=40, max_denominator=30)


def latex(value: Fraction, form: int) -> str:
    """Write a rational in one of several ways."""
    sign, size = ("-" if value < 0 else ""), abs(value)
    whole, rest = divmod(size.numerator, size.denominator)
    if form == 1:
        return rf"{sign}\dfrac{{{3 * size.numerator}}}{{{3 * size.denominator}}}"
    if form == 2 and whole and rest:
        return rf"{sign}{whole}\frac{{{rest}}}{{{size.denominator}}}"
    if form == 3:
        return f"{value.numerator}/{value.denominator}"
    if form == 4 and 10**6 % size.denominator == 0:
        return f"{sign}{size.numerator / size.denominator:.6f}"
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


@settings(derandomize=True)
@given(rationals, rationals, st.booleans(), st.integers(0, 4), st.integers(0, 4))
def test_rationals_are_equal_exactly_when_their_values_are(
    patient_verifier: Verifier, a: Fraction, b: Fraction, is_same: bool, form: int, other_form: int
) -> None:
    if is_same:
        b = a
    verdict = patient_verifier.verify(latex(a, form), latex(b, other_form))

    assert verdict.is_correct == (a == b), verdict
    assert verdict.method == "exact"


small = st.integers(-4, 4)


@pytest.mark.slow
@settings(derandomize=True)
@given(small, small, st.sampled_from([2, 3, 5]), small, small, st.sampled_from([2, 3, 8]))
def test_radicals_are_equal_exactly_when_their_coordinates_are(
    patient_verifier: Verifier, a: int, b: int, n: int, c: int, d: int, m: int
) -> None:
    """`a + b sqrt(n)` has one form for square-free n; `sqrt(8)` is `2 sqrt(2)`."""
    free, factor = (2, 2) if m == 8 else (m, 1)
    is_same = a == c and b == d * factor and (n == free or b == 0)

    answer, gold = f"{a}+{b}\\sqrt{{{n}}}", f"{d}\\sqrt{{{m}}}+{c}"
    verdict = patient_verifier.verify(answer.replace("+-", "-"), gold.replace("+-", "-"))
    assert verdict.is_correct == is_same


Tree = tuple[str, complex, int]
"""LaTeX, value, and binding strength: 3 atom, 2 product, 1 sum."""
POINT = {"x": 1.37, "y": 0.61}


def leaf() -> st.SearchStrategy[Tree]:
    numbers = st.integers(1, 9).map(lambda k: (str(k), complex(k), 3))
    symbols = st.sampled_from([(name, complex(value), 3) for name, value in POINT.items()])
    constants = st.sampled_from([(r"\pi", complex(math.pi), 3), ("e", complex(math.e), 3)])
    return numbers | symbols | constants


def grow(child: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    def wrap(tree: Tree, strength: int) -> str:
        return tree[0] if tree[2] >= strength else rf"\left({tree[0]}\right)"

    def power(tree: Tree, k: int) -> Tree:
        return f"{wrap(tree, 4)}^{{{k}}}", tree[1] ** k, 2

    pair = st.tuples(child, child)
    return st.one_of(
        pair.map(lambda p: (f"{p[0][0]} + {wrap(p[1], 2)}", p[0][1] + p[1][1], 1)),
        pair.map(lambda p: (f"{p[0][0]} - {wrap(p[1], 2)}", p[0][1] - p[1][1], 1)),
        pair.map(lambda p: (rf"{wrap(p[0], 2)} \cdot {wrap(p[1], 3)}", p[0][1] * p[1][1], 2)),
        st.tuples(child, leaf()).map(
            lambda p: (rf"\frac{{{p[0][0]}}}{{{p[1][0]}}}", p[0][1] / p[1][1], 2)
        ),
        child.map(lambda t: (rf"\sqrt{{{t[0]}}}", cmath.sqrt(t[1]), 3)),
        child.map(lambda t: (rf"\cos({t[0]})", cmath.cos(t[1]), 2)),
        st.tuples(child, st.integers(2, 3)).map(lambda p: power(*p)),
    )


trees = st.recursive(leaf(), grow, max_leaves=4)


@settings(derandomize=True)
@given(trees, trees, st.sampled_from(["first", "second", "shuffled"]))
def test_expressions_mean_what_their_tree_does(
    patient_verifier: Verifier, first: Tree, second: Tree, mode: str
) -> None:
    """Different values at one point must be rejected; the same tree, rewritten, accepted."""
    if mode == "shuffled":
        answer = rf"2 \cdot \left({first[0]}\right) - \left({first[0]}\right)"
        assert patient_verifier.verify(answer, first[0]).is_correct
        return
    a, b = (first, second) if mode == "first" else (second, first)
    if abs(a[1] - b[1]) > 1e-6 * max(1, abs(a[1])):
        assert not patient_verifier.verify(a[0], b[0]).is_correct


# ---- which part of a message is its answer


def test_answer_is_found() -> None:
    answers = {
        r"Thus \boxed{7}.": "7",
        r"\boxed{\frac{1}{2}}": r"\frac{1}{2}",
        r"$\boxed{\left\{1, 2\right\}}$": r"\left\{1, 2\right\}",
        r"\boxed{\{x : x > 2\}}": r"\{x : x > 2\}",
        r"\boxed {7}": "7",
        r"\fbox{7}": "7",
        r"$\boxed{\fbox{7}}$": r"\fbox{7}",
        r"so $\boxed 7$.": "7",
        r"$\boxed\frac12$": r"\frac12",
        r"\boxed{7} and again \boxed{7}": "7",
        r"\boxed{0.5}, that is \boxed{\frac12}": r"\frac12",
        r"Answer: 8 but \boxed{7}": "7",
        "Answer: 7": "7",
        "**Final answer:** 7": "7",
        "The answer is: $7$": "$7$",
        "work\n#### 1,234\n": "1,234",
        "Therefore, the answer is 7.": "7",
        "work, so the answer is $7$ meters.": "$7$ meters",
        "The final answer is: $7$. I hope it is correct.": "$7$",
        "The answer is 7.5 because it is half of 15.": "7.5",
        "The answer is therefore $7$, as required.": "$7$",
        "The answer must be 7 and we are done.": "7",
        "The answer is $7$, so we're done.": "$7$",
        "The answer is $x=7$ and $y=8$.": "$x=7$ and $y=8$",
        "The answer is (C). It is larger than B.": "(C)",
        "The answer is an integer. Answer: 7": "7",
        "Final Answer: The largest $n$ is 7. I hope it is correct.": "7",
        "Answer:\n$$7$$": "$$7$$",
        "**Final Answer**\n\n\\[\n7\n\\]": "\\[\n7\n\\]",
        "**Answer:** 7": "7",
        "所以答案是 $7$。": "$7$",
        "最终答案：7": "7",
        "答えは7です。": "7です",
        r"\boxed{\boxed{7}}": r"\boxed{7}",
        # none
        "": None,
        "7": None,
        r"\boxed{}": None,
        r"\boxed{7": None,
        r"\boxedx 7": None,
        r"\boxed 7 + 1": None,
        "Suppose the answer is 7": None,
        "Is the answer 7?": None,
        "the answers vary: 7": None,
        "Answer:": None,
        "answer 7": None,
    }
    found = {message: extract_final_answer(message) for message in answers}
    boxes = {m: "box" in m and answer is not None for m, answer in answers.items()}
    assert found == {m: Extraction(a, is_boxed=boxes[m]) for m, a in answers.items()}


def test_different_answers_are_a_hedge() -> None:
    messages = [
        r"\boxed{7} or \boxed{8}",
        r"\boxed{8}\boxed{7}\boxed{7}",
        "Answer: 7\nAnswer: 8",
        "#### 7\nAnswer: 8",
        r"\boxed{0.33} = \boxed{1/3}",
        r"\boxed 7 or \boxed 8",
        "The answer is 7. No, the answer is 8.",
        "".join(f"Answer: 7.{'0' * zeros}\n" for zeros in range(50)),
    ]
    assert [m for m in messages if not extract_final_answer(m).is_hedged] == []


def test_extraction_is_linear_in_a_long_message() -> None:
    message = r"\boxed{" * 20_000 + "7" + "answer is " * 20_000

    assert extract_final_answer(message).answer is None


# ---- text that tries to run, to hang, or to be something else than one answer


def test_payload_is_rejected_and_not_run(tmp_path: Path) -> None:
    assert verify(r"\sqrt8", r"2\sqrt2").is_correct
    target = tmp_path / "executed"
    for payload in (
        "__import__('os').system('touch {}')",
        "__import__('os').system('touch {}') or 7",
        "7 + __import__('os').system('touch {}')",
        "exec(\"open('{}', 'w')\")",
        "open('{}', 'w')",
        r"\text{{__import__('os').system('touch {}')}}",
        r"\frac{{open('{}', 'w')}}{{7}}",
        r"\operatorname{{eval}}(open('{}', 'w'))",
        r"x_{{__import__('os').system('touch {}')}}",
        r"\mathrm{{__import__}}('os').system('touch {}')",
        "(lambda: open('{}', 'w'))()",
        "[c for c in ().__class__.__base__.__subclasses__()][0]('{}')",
        'f\'{{open("{}", "w")}}\'',
        r"\input{{{}}}",
        r"\write18{{touch {}}}",
        "$(touch {})",
    ):
        text = payload.format(target)
        for answer, gold in ((text, "7"), (text, r"\sqrt{2}"), (text, text + "x"), ("7", text)):
            assert not verify(answer, gold).is_correct, (answer, gold)
        assert not target.exists(), payload


def test_oversized_answer_is_rejected_before_any_worker() -> None:
    answers = [
        "9^{9^{9^9}}",
        "10^{5^{5^5}}",
        "2^{2^{2^{2^{2^2}}}}",
        "(" * 300 + "1" + ")" * 300,
        "{" * 100 + "1" + "}" * 100,
        "(" * 30 + "x" + ")" * 30,
        "(10^8)!",
        "100000!",
        r"\binom{10^9}{10^8}",
        "x^{1000000}",
        "(x+y+z)^{5000}",
        "1.1^{10^{9}}",
        "9" * 200,
        "1" + "+1" * 400,
        "1" * 600,
        r"\sqrt[1000000]{2}",
        "x^{0.000000001}",
        "1," * 100 + "1",
    ]
    verdicts = {answer: verify(answer, r"\sqrt{7}") for answer in answers}
    assert {(v.is_correct, v.method) for v in verdicts.values()} == {(False, Method.REJECTED)}, (
        verdicts
    )


def test_hard_answer_comes_to_an_end() -> None:
    """Some would be computed for good."""
    answers = [
        r"9^{\pi^{9^{9}}}",
        r"e^{e^{e^{e^{e}}}}",
        r"\exp(\exp(\exp(100)))",
        r"\pi^{\pi^{\pi^{\pi}}}",
        r"(x!)!",
        r"\sin(10^{100}\pi)",
        r"(1+\sqrt2)^{200}",
        r"(a+b+c+d+e+f)^{100}",
        r"\cos(\cos(\cos(\cos(\cos(\cos(x))))))",
        r"x^{x^{x^{x^{x}}}}",
    ]
    assert [answer for answer in answers if verify(answer, r"\sqrt{7}").is_correct] == []


def test_malformed_answer_is_told_apart() -> None:
    methods = {
        "": Method.UNPARSABLE,
        " ": Method.UNPARSABLE,
        "seven": Method.EXACT,
        "7 apples or so": Method.EXACT,
        "7 maybe": Method.EXACT,
        r"7\text{ maybe}": Method.UNPARSABLE,
        "|" * 500: Method.REJECTED,
        "7)": Method.UNPARSABLE,
        "(7": Method.UNPARSABLE,
        r"\frac{1}{2": Method.UNPARSABLE,
        r"\int_0^1 x dx": Method.UNPARSABLE,
        "7 = ": Method.UNPARSABLE,
        "\x00": Method.UNPARSABLE,
        "七": Method.UNPARSABLE,
        "x^2^3": Method.UNPARSABLE,
        "1/0": Method.UNPARSABLE,
        "x<3>2": Method.UNPARSABLE,
    }
    verdicts = {answer: verify(answer, "7") for answer in methods}
    assert {answer: verdict.method for answer, verdict in verdicts.items()} == methods
    assert not any(verdict.is_correct for verdict in verdicts.values())


def test_gold_that_cannot_be_read_is_named_and_matches_its_own_text_only() -> None:
    gold = r"\int_0^1 x \, dx"

    assert verify(gold, gold).is_correct
    for answer in (r"\frac12", "", "seven", "9^{9^{9^9}}", "1" * 600, "(", "7"):
        verdict = verify(answer, gold)
        assert (verdict.is_correct, verdict.method) == (False, Method.UNSUPPORTED_GOLD), answer
    assert verify(r"\frac12", gold).reason.startswith(
        r"cannot read gold '\\int_0^1 x \\, dx': the command \int"
    )


def test_gold_that_is_not_equal_to_itself_is_named() -> None:
    """An interval whose ends cannot be ordered, in a union, is read but never compared."""
    gold = r"[a,b]\cup[c,d]"

    verdict = verify("[1,2]", gold)
    assert (verdict.is_correct, verdict.method) == (False, Method.UNSUPPORTED_GOLD)
    assert verdict.reason.startswith(rf"gold {gold!r} is not equal to itself: cannot order")
    assert verify(r"[a, b] \cup [c, d]", gold).is_correct

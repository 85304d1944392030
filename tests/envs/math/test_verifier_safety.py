"""Text that tries to run, to hang, or to be something else than one answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from katgym_envs.math.verifier import Method, Verifier


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier() as opened:
        assert opened.verify(r"\sqrt8", r"2\sqrt2").is_correct
        yield opened


@pytest.mark.parametrize(
    "payload",
    [
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
    ],
)
def test_payload_is_rejected_and_not_run(verifier: Verifier, tmp_path: Path, payload: str) -> None:
    target = tmp_path / "executed"
    text = payload.format(target)

    for answer, gold in ((text, "7"), (text, r"\sqrt{2}"), (text, text + "x"), ("7", text)):
        assert not verifier.verify(answer, gold).is_correct
    assert not target.exists()


@pytest.mark.parametrize(
    "answer",
    [
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
    ],
)
def test_oversized_answer_is_rejected_at_once(verifier: Verifier, answer: str) -> None:
    verdict = verifier.verify(answer, r"\sqrt{7}")

    assert (verdict.is_correct, verdict.method) == (False, Method.REJECTED)  # before any worker


@pytest.mark.parametrize(
    "answer",
    [
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
    ],
)
def test_hard_answer_comes_to_an_end(verifier: Verifier, answer: str) -> None:
    assert not verifier.verify(answer, r"\sqrt{7}").is_correct  # some would be computed for good


@pytest.mark.parametrize(
    ("answer", "method"),
    [
        ("", Method.UNPARSABLE),
        (" ", Method.UNPARSABLE),
        ("seven", Method.EXACT),
        ("7 apples or so", Method.EXACT),
        ("7 maybe", Method.EXACT),
        (r"7\text{ maybe}", Method.UNPARSABLE),
        ("|" * 500, Method.REJECTED),
        ("7)", Method.UNPARSABLE),
        ("(7", Method.UNPARSABLE),
        (r"\frac{1}{2", Method.UNPARSABLE),
        (r"\int_0^1 x dx", Method.UNPARSABLE),
        ("7 = ", Method.UNPARSABLE),
        ("\x00", Method.UNPARSABLE),
        ("７", Method.UNPARSABLE),
        ("x^2^3", Method.UNPARSABLE),
        ("1/0", Method.UNPARSABLE),
        ("x<3>2", Method.UNPARSABLE),
    ],
)
def test_malformed_answer_is_told_apart(verifier: Verifier, answer: str, method: Method) -> None:
    verdict = verifier.verify(answer, "7")

    assert (verdict.is_correct, verdict.method) == (False, method)


def test_gold_that_cannot_be_read_is_named_and_matches_its_own_text_only(
    verifier: Verifier,
) -> None:
    gold = r"\int_0^1 x \, dx"

    assert verifier.verify(gold, gold).is_correct
    verdict = verifier.verify(r"\frac12", gold)
    assert (verdict.is_correct, verdict.method) == (False, Method.UNSUPPORTED_GOLD)
    assert verdict.reason.startswith(r"cannot read gold '\\int_0^1 x \\, dx': the command \int")


@pytest.mark.parametrize("answer", ["", "seven", "9^{9^{9^9}}", "1" * 600, "(", "7"])
def test_gold_that_cannot_be_read_is_named_whatever_the_answer_is(
    verifier: Verifier, answer: str
) -> None:
    assert verifier.verify(answer, r"\int_0^1 x \, dx").method is Method.UNSUPPORTED_GOLD


def test_gold_that_is_not_equal_to_itself_is_named(verifier: Verifier) -> None:
    """An interval whose ends cannot be ordered, in a union, is read but never compared."""
    gold = r"[a,b]\cup[c,d]"

    verdict = verifier.verify("[1,2]", gold)
    assert (verdict.is_correct, verdict.method) == (False, Method.UNSUPPORTED_GOLD)
    assert verdict.reason.startswith(rf"gold {gold!r} is not equal to itself: cannot order")
    assert verifier.verify(r"[a, b] \cup [c, d]", gold).is_correct

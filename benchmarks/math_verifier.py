"""What the math verifier understands, accepts and refuses, and its times, on lists of yours.

    python benchmarks/math_verifier.py --golds MATH=math.jsonl --pairs grader=pairs.jsonl
    python benchmarks/math_verifier.py --pairs grader=pairs.jsonl --peer --wrong WRONG.jsonl
    python benchmarks/math_verifier.py --hostile 3000 --output benchmarks/math_verifier.csv

A file of golds has a `gold` in each line, a file of pairs an `answer`, a `gold` and an `is_equal`.
None is shipped: the rows of `math_verifier.csv` name the public lists they were measured on. A gold
is understood when it is read and equal to itself by its meaning (not by its text). `--peer` asks
math-verify beside the verifier, pair by pair in turn.

A pair of `math_verifier_disputed.jsonl`, whose label a careful reader may doubt for the reason that
stands beside it, counts in all columns but those named `undisputed`.

Not here: which answers are right (`tests/envs/math/verifier_cases.txt` has pairs of our own).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from katgym_envs.math.verifier import Method, Verifier
from katgym_envs.math.verifier.judge import is_sound

PIECES = r"""
    \frac { } ( ) [ ] ^ _ 1 2 x y \sqrt \pi e i + - * / = < > , ; : \cup \in \text{ cm or and & \\
    \{ \} | ! % $ \approx \le \infty . ... \overline \sum_{k=1}^{n} \sin \ln \log_ 99999 0.5 '
    \begin{pmatrix} \end{pmatrix} \begin{cases} \end{cases} \lfloor \rfloor \choose \over \pm ^\circ
    \binom _{16} \left\{ \right. ]0,1[ million per 12:30 p.m. \quad ~ ** 1e9 0.(3)
""".split()  # noqa: SIM905 one piece a word
DISPUTED = Path(__file__).with_name("math_verifier_disputed.jsonl")
LONG = [
    "9^{9^{9^9}}", "{(10^8)!}", r"e^{e^{e^e}}", "(a+b+c+d)^{200}", "3000!", r"\sqrt{" * 23,
    "(" * 512, "|" * 512, "$" * 512, "1e400^{15}", "1," * 255, "x<" * 250 + "x", "\\" * 512,
    r"\cos(" * 20 + "x" + ")" * 20, r"\text{a}" * 70, "word " * 100, "]0,1[" * 100, "\ud800",
    r"\sum_{k=1}^{n}" * 20 + "k", "0." + "12" * 120 + "...", "\x00", r"{2000 \choose 1000}" * 20,
    ",".join(rf"\sin {k}" for k in range(1, 60)), ",".join(rf"\sqrt{{{k}}}" for k in range(2, 45)),
    r"\lcm(" + ",".join(f"{k}!" for k in range(2900, 2950)) + ")",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the CSV; percentages of what the columns before them count."""

    kind: str
    name: str
    by: str
    num: int
    understood_percent: float | str = ""
    num_self_failed: int | str = ""
    num_right: int | str = ""
    false_negatives: int | str = ""
    false_positives: int | str = ""
    num_disputed: int | str = ""
    undisputed_false_negatives: int | str = ""
    undisputed_false_positives: int | str = ""
    p50_ms: float | str = ""
    p99_ms: float | str = ""
    max_ms: float | str = ""
    num_crashes: int | str = ""
    load: float = 0.0
    """Processes that wanted a processor when the row was written."""


def measure_golds(name: str, path: Path) -> Row:
    golds = [str(json.loads(line)["gold"]) for line in path.open()]
    read = [found for gold in golds if (found := is_sound(gold)) is not None]
    share = 100 * sum(read) / len(golds)
    return Row(
        kind="golds",
        name=name,
        by="katgym",
        num=len(golds),
        understood_percent=round(share, 2),
        num_self_failed=len(read) - sum(read),
        load=os.getloadavg()[0],
    )


def measure_pairs(
    name: str, path: Path, askers: dict[str, Callable[[str, str], bool]], wrong: list[str]
) -> Iterator[Row]:
    pairs = [json.loads(line) for line in path.open()]
    disputed = [json.loads(line) for line in DISPUTED.open()]
    doubts = {(d["answer"], d["gold"], d["is_equal"]) for d in disputed}
    verdicts: dict[str, list[bool]] = {by: [] for by in askers}
    times: dict[str, list[float]] = {by: [] for by in askers}
    for pair in pairs:
        for by, ask in askers.items():
            started = time.perf_counter()
            verdicts[by].append(ask(pair["answer"], pair["gold"]))
            times[by].append(1000 * (time.perf_counter() - started))
    for by in askers:
        judged = list(zip(pairs, verdicts[by], strict=True))
        missed = [pair for pair, verdict in judged if pair["is_equal"] and not verdict]
        passed = [pair for pair, verdict in judged if verdict and not pair["is_equal"]]
        sure = [
            pair
            for pair in missed + passed
            if (pair["answer"], pair["gold"], pair["is_equal"]) not in doubts
        ]
        wrong += [json.dumps({"by": by, "list": name, **pair}) for pair in passed + missed]
        yield Row(
            kind="pairs",
            name=name,
            by=by,
            num=len(pairs),
            num_right=sum(pair["is_equal"] for pair in pairs),
            false_negatives=len(missed),
            false_positives=len(passed),
            num_disputed=sum((p["answer"], p["gold"], p["is_equal"]) in doubts for p in pairs),
            undisputed_false_negatives=sum(pair["is_equal"] for pair in sure),
            undisputed_false_positives=sum(not pair["is_equal"] for pair in sure),
            load=os.getloadavg()[0],
            **spread(times[by]),
        )


def measure_hostile(verifier: Verifier, num: int) -> Row:
    rng = random.Random(5)
    texts = LONG + [
        "".join(rng.choice(PIECES) for _ in range(rng.randint(1, rng.choice([8, 20, 60]))))
        for _ in range(num)
    ]
    times, num_crashes = [], 0
    for text in texts:
        other = rng.choice([r"\sqrt7", "7", "x^2+1", r"\text{even}", "(1,2)", r"\{1,2\}"])
        for answer, gold in ((text, other), (other, text), (f"{text}+x", f"{text} +x+0")):
            started = time.perf_counter()
            try:
                verifier.verify(answer, gold)
            except Exception as e:  # what is counted here
                num_crashes += 1
                print(f"{type(e).__name__}: {answer!r} against {gold!r}", file=sys.stderr)
            times.append(1000 * (time.perf_counter() - started))
    return Row(
        kind="hostile",
        name="random pieces of LaTeX and long texts",
        by="katgym",
        num=len(times),
        num_crashes=num_crashes,
        load=os.getloadavg()[0],
        **spread(times),
    )


def spread(times_ms: list[float]) -> dict[str, float]:
    ordered = sorted(times_ms)
    at = {name: ordered[int(q * (len(ordered) - 1))] for name, q in (("p50", 0.5), ("p99", 0.99))}
    return {f"{name}_ms": round(value, 1) for name, value in at.items()} | {
        "max_ms": round(ordered[-1], 1)
    }


def ask_math_verify(answer: str, gold: str) -> bool:
    """Ask math-verify as its documentation does, with formulas in `$` where they have none."""
    from math_verify import parse, verify

    def read(text: str) -> list[object]:
        found: list[object] = parse(text if "$" in text or "\\" not in text else f"${text}$")
        return found

    try:
        return bool(verify(read(gold), read(answer)))
    finally:
        signal.alarm(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--golds", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--pairs", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--hostile", type=int, default=0, metavar="N", help="N random texts")
    parser.add_argument("--peer", action="store_true", help="math-verify beside the verifier")
    parser.add_argument("--wrong", type=Path, help="where to write the pairs that were misjudged")
    parser.add_argument("--output", type=Path, help="a CSV file to add the rows to")
    options = parser.parse_args()
    rows: list[Row] = []
    wrong: list[str] = []
    with Verifier() as verifier:
        verifier.verify(r"\sqrt8", r"2\sqrt2")
        askers: dict[str, Callable[[str, str], bool]] = {
            "katgym": lambda answer, gold: verifier.verify(answer, gold).is_correct
        }
        if options.peer:
            askers["math-verify"] = ask_math_verify
        for text in options.golds:
            name, _, path = text.partition("=")
            rows.append(measure_golds(name, Path(path)))
        for text in options.pairs:
            name, _, path = text.partition("=")
            rows += measure_pairs(name, Path(path), askers, wrong)
        if options.hostile:
            rows.append(measure_hostile(verifier, options.hostile))
        assert verifier.verify("7", r"\int_0^1 x").method is Method.UNSUPPORTED_GOLD
    for row in rows:
        print(row)
    if options.wrong:
        options.wrong.write_text("\n".join(wrong) + "\n")
    if options.output:
        is_new = not options.output.exists()
        with options.output.open("a", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Row)])
            if is_new:
                writer.writeheader()
            writer.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    main()

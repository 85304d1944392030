"""What is printed: no text is markup, pipes get a line a record, no encoding ends a command."""

from __future__ import annotations

import ast
import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.progress_bar import ProgressBar
from rich.text import Text

from katgym import console
from katgym.text_table import TextTable

ROOT = Path(__file__).parents[2]
PRODUCT = ("katgym", "envs/katgym_envs", "trainer/katgym_trainer", "plugins")
BAD = "a [swe] b [/easy] [bold]c :smile: \\["


def _on_terminal(table: TextTable, *, width: int) -> list[str]:
    """Return the lines that a terminal of this width shows, without styles."""
    shown = console.Console(
        file=io.StringIO(), width=width, force_terminal=True, color_system=None, markup=False
    )
    shown.print(table)
    return [line.rstrip() for line in shown.file.getvalue().splitlines()]


def _in_pipe(table: TextTable) -> list[str]:
    shown = console.Console(file=io.StringIO(), width=20, markup=False)
    shown.width = 1000
    shown.print(table)
    return shown.file.getvalue().split("\n")


LIST_ENVS = """
import sys, katgym
from katgym.cli.main import main
from katgym.testing import EchoEnv
katgym.register("console_test/Markup-v0", EchoEnv, description=sys.argv[1])
raise SystemExit(main(["envs"]) or main(["envs", "console_test/Markup-v0"]))
"""


def test_what_a_description_holds_is_shown_as_it_stands() -> None:
    command = [sys.executable, "-c", LIST_ENVS, BAD]
    environment = {**os.environ, "KATGYM_PLUGINS": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(BAD) == 2


def test_messages_rules_errors_and_logs_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    console.stdout.print(BAD)
    console.print_rule(BAD)
    console.print_message({"role": "user", "content": BAD})
    console.print_rows([(BAD, Text(BAD))], header=(BAD, BAD), right=(BAD,))
    console.print_error(BAD)
    console.show_logs()
    logging.getLogger("katgym.console_test").warning("%s", BAD)
    out, err = capsys.readouterr()
    assert (out.count(BAD), err.count(BAD)) == (7, 2)


def test_only_the_console_makes_consoles_and_nobody_writes_markup() -> None:
    """A console of ours reads no markup, so whatever goes through one is harmless."""
    found = []
    for path in (p for part in PRODUCT for p in (ROOT / part).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "rich" not in text and "console" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                is_console = any(ast.unparse(base).endswith("Console") for base in node.bases)
                found += [f"{path.relative_to(ROOT)}:{node.lineno}"] if is_console else []
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                is_markup = any(k.arg == "markup" and ast.unparse(k.value) != "False"
                                for k in node.keywords)  # fmt: skip
                makes = name.endswith("Console") or name == "rich.print"
                if makes or is_markup or name.endswith("from_markup"):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert [place.partition(":")[0] for place in found] == ["katgym/console.py"] * 2


TABLE = TextTable(
    header=("env", "rate", "what"),
    rows=[
        ("katgym/A-v0", "1.000", "a sentence that has some more words than fit"),
        ("katgym/LongName-v0", "0.5", Text("short", style="red")),
    ],
    right=("rate",),
    title="rates",
    caption="by task",
)


def test_a_table_that_fits_has_columns_and_folds_the_last() -> None:
    assert _on_terminal(TABLE, width=55) == [
        "rates",
        "env                  rate  what",
        "katgym/A-v0         1.000  a sentence that has some",
        "                           more words than fit",
        "katgym/LongName-v0    0.5  short",
        "by task",
    ]


def test_a_header_is_folded_before_a_table_becomes_records() -> None:
    numbers = ("tokens out",)
    table = TextTable(header=("run", *numbers), rows=[("a" * 10, "12")], right=numbers)
    assert _on_terminal(table, width=18) == [
        "            tokens",
        "run            out",
        "aaaaaaaaaa      12",
    ]
    assert _on_terminal(table, width=17)[0] == "run         aaaaa"


def test_a_table_without_room_is_a_record_a_row() -> None:
    assert _on_terminal(TABLE, width=40) == [
        "rates",
        "env   katgym/A-v0",
        "rate  1.000",
        "what  a sentence that has some more",
        "      words than fit",
        "",
        "env   katgym/LongName-v0",
        "rate  0.5",
        "what  short",
        "by task",
    ]
    lines = _on_terminal(TextTable(rows=[("key", "word " * 12)]), width=30)  # it has no names
    assert lines[0].startswith("key  word") and lines[1].startswith("     word")


def test_in_a_pipe_a_row_is_a_line_without_blanks_behind() -> None:
    assert _in_pipe(TABLE) == [
        "rates",
        "env                  rate  what",
        "katgym/A-v0         1.000  a sentence that has some more words than fit",
        "katgym/LongName-v0    0.5  short",
        "by task",
        "",
    ]
    assert _in_pipe(TextTable(rows=[("a\n\nb", "c\nd")])) == ["a; b  c; d", ""]
    assert _in_pipe(TextTable(rows=[])) == [""]
    assert _in_pipe(TextTable(header=("a", "b"), rows=[])) == ["a  b", ""]


def test_bars_have_room_on_a_terminal() -> None:
    rows = [("a", ProgressBar(total=2, completed=2, width=10), "2/2")]
    table = TextTable(header=("env", "", "done"), rows=rows, right=("done",))
    assert _on_terminal(table, width=30)[1] == "a    ━━━━━━━━━━   2/2"
    assert _on_terminal(table, width=15)[1].strip() == "━" * 9


def test_long_lines_are_not_wrapped_in_a_pipe_and_tracebacks_keep_theirs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = "word " * 500 + "end"
    console.stdout.print(long)
    console.show_logs()
    logging.getLogger("katgym.console_test").warning("first\nsecond %s", long)
    out, err = capsys.readouterr()
    assert out == long + "\n"
    assert err == f"WARNING first second {long}\n"
    try:
        raise ValueError("[/x]")
    except ValueError:
        logging.getLogger("katgym.console_test").exception("failed")
    lines = capsys.readouterr().err.splitlines()
    assert (lines[0], lines[-1]) == ("ERROR failed", "ValueError: [/x]")


def test_what_an_encoding_lacks_is_shown_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding, shown in (
        ("ascii", "1-2 -0.5 x \\u4e2d"),
        ("cp1252", "1–2 -0.5 × \\u4e2d"),
    ):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
        monkeypatch.setattr(sys, "stdout", stream)
        console.settle_streams()
        console.stdout.print("1–2 −0.5 × 中")
        console.print_json("–")
        stream.flush()
        assert stream.buffer.getvalue().decode(encoding) == f'{shown}\n"\\u2013"\n'

"""Honest repairs unlike gold are resolved, whatever their code is made of."""

import asyncio
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from katgym.sandbox import shared_backend
from katgym_envs.swe.grading.report import Outcome

sys.path.append(str(Path(__file__).parents[4] / "benchmarks"))

from honest_repairs import Repair, choose_repairs, draft_of, grade_repair, repair_of, tasks_of
from honest_rewrites import KINDS, Draft

SHOP = '''\
"""Codes of a shop."""

SIZES = (1, 2, 5)


def code(serial, extra=0):
    """Return a code."""
    if serial < 0:
        raise ValueError("negative")
    digits = str(serial).zfill(10)
    total = 0
    for place, size in enumerate(SIZES):
        total += size * int(digits[-1 - place])
    odd = [digit for digit in digits if digit in "13579"]
    if extra and total > 7:
        total += extra
    return f"{digits}{total}" if odd else digits + "-" + str(total)
'''
# What works on statements comes before what moves them.
WRITTEN_ANEW = (
    "by_hand", "early_return", "branches_inverted", "comparisons_turned", "conditions_named",
    "locals_renamed", "results_named", "constants_parsed", "operators_imported", "guards_apart",
    "debug_logged", "caller_logged", "try_finally", "helper_module", "signature_bound",
    "hints_and_docstring", "reformatted", "folder_listed_at_import", "documents_added",
)  # fmt: skip
MOVED = (
    "loops_by_hand", "by_de_morgan", "conditions_nested", "constants_named", "value_in_namedtuple",
    "printed_to_stderr", "stacklevel_counted", "errors_raised_again", "method_object", "decorator",
    "under_lock", "inner_function", "uncalled_file_reader", "version_looked_up", "main_block",
    "all_touched", "tests_added",
)  # fmt: skip


def rows_of(repairs: Iterable[Repair]) -> list[dict[str, str]]:
    async def go() -> list[dict[str, str]]:
        sandboxes = shared_backend("local")
        return [await grade_repair(repair, sandboxes) for repair in repairs]

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("instance_id", "kinds"),
    [("parcelkit-1.0.0-1f351492", WRITTEN_ANEW), ("parcelkit-1.0.0-ed9d86d7", MOVED)],
)
def test_a_repair_of_many_kinds_at_once_is_resolved(instance_id: str, kinds: tuple[str, ...]):
    [task] = tasks_of(("toy",), 1, [instance_id])
    draft = draft_of(task)
    assert draft is not None
    repair = repair_of(task, draft, kinds)
    assert repair is not None and len(repair.kind.split()) >= 14, repair
    [row] = rows_of([repair])
    assert (row["outcome"], row["reason"]) == (Outcome.RESOLVED, "")


def test_what_fails_a_test_is_left_out():
    [task] = tasks_of(("toy",), 1, ["parcelkit-1.0.0-1f351492"])
    [row] = rows_of([Repair(kind="none", task=task, files={"NOTES.md": b"Nothing is repaired.\n"})])
    count = len(task.hidden.fail_to_pass)
    told = f"{count} tests fail: {task.hidden.fail_to_pass[0]}"
    assert (row["outcome"], row["reason"]) == ("left out", told)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_changes_the_text_and_not_what_it_computes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    package = f"shop_of_{kind}"
    path = f"{package}/codes.py"
    base = {f"{package}/__init__.py": b"", path: SHOP.replace("zfill(10)", "zfill(11)").encode()}
    draft = Draft.of_gold(base, {path: SHOP}, python_path=(".",), test_paths=())
    assert draft is not None and draft.place == ("code", 0)
    changed = KINDS[kind](draft)
    assert changed is not None and changed.files != draft.files
    for name, text in {**{p: b.decode() for p, b in base.items()}, **changed.files}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    code = importlib.import_module(f"{package}.codes").code
    inputs = [(7, 0), (13, 0), (2468, 0), (2468, 30), (999, 30)]
    assert [code(serial, extra=extra) for serial, extra in inputs] == [
        "00000000077", "00000000135", "0000002468-40", "0000002468-70", "0000000999102",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="negative"):
        code(-1)


@pytest.mark.slow
@pytest.mark.parametrize(("task_set", "per_task"), [("toy", 8), ("shipped", 5)])
def test_repairs_of_all_kinds_are_resolved(task_set: str, per_task: int):
    tasks = tasks_of((task_set,), 8, ())
    rows = rows_of(choose_repairs(tasks, kinds=tuple(KINDS), per_task=per_task))
    right = [row for row in rows if row["outcome"] != "left out"]
    assert len(right) >= 100
    assert [row for row in right if row["outcome"] != Outcome.RESOLVED] == []

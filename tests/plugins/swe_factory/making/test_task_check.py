"""`katgym swe check` names what is wrong: one broken task for each thing it looks for."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from faulty_backend import BusyBackend, FaultyBackend

from katgym.cli.main import main
from katgym.environment.reward import Trust
from katgym.sandbox import layer_store
from katgym.sandbox.backends import backend
from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.canaries.canary import source_id
from katgym_envs.swe.hidden import HiddenTests, TestFunction, ValidCanary
from katgym_envs.swe.patching import as_tree
from katgym_envs.swe.row import SweRow
from katgym_envs.swe.sources.mutation_set import MutationSet
from katgym_envs.swe.sources.open_source import open_source
from katgym_envs.swe.swe_task import Workspace
from katgym_envs.swe.task_source import TaskSource
from katgym_plugin_swe_factory.checking.task_check import TaskCheckResult, check_tasks
from katgym_plugin_swe_factory.checking.trust_levels import measure_levels

pytestmark = pytest.mark.slow


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is made wrong of a sound task."""

    hidden: Callable[[HiddenTests], HiddenTests] = lambda hidden: hidden
    row: Callable[[SweRow, HiddenTests], SweRow] = lambda row, hidden: row
    files: Callable[[Mapping[str, bytes], HiddenTests], Mapping[str, bytes]] = (
        lambda files, hidden: files
    )


@dataclass(frozen=True)
class BrokenTasks(TaskSource):
    """One sound task, and the same with a change each: the id is the change's name."""

    source: TaskSource
    sound_id: str

    def rows(self, split: str | None = None) -> Sequence[SweRow]:
        return self.source.rows(split)

    def row(self, instance_id: str) -> SweRow:
        row = msgspec.structs.replace(self.source.row(self.sound_id), instance_id=instance_id)
        return CHANGES[instance_id].row(row, self.source.load_hidden(self.sound_id))

    def workspace(self, instance_id: str) -> Workspace:
        made = self.source.workspace(self.sound_id)
        before = self.source.base_files(self.sound_id)
        after = self.base_files(instance_id)
        return made if after == before else replace(made, layer=layer_store().add_files(after))

    def base_tree(self, instance_id: str) -> Mapping[str, FileEntry]:
        files = self.source.base_files(self.sound_id)
        return as_tree(CHANGES[instance_id].files(files, self.source.load_hidden(self.sound_id)))

    def load_hidden(self, instance_id: str) -> HiddenTests:
        hidden = self.source.load_hidden(self.sound_id)
        return replace(CHANGES[instance_id].hidden(hidden), instance_id=instance_id)


def with_flaky_test(hidden: HiddenTests) -> HiddenTests:
    path = hidden.functions[0].path
    text = b"\n\ndef test_by_luck():\n    assert __import__('os').urandom(1) > b'\\xe0'\n"
    function = TestFunction(path=path, qualname="test_by_luck")
    return replace(
        hidden,
        files={**hidden.files, path: hidden.files[path] + text},
        functions=(*hidden.functions, function),
        pass_to_pass=(*hidden.pass_to_pass, *function.node_ids()),
        canaries=(),  # they belong to the file as it was
    )


def with_test_that_needs_another(hidden: HiddenTests) -> HiddenTests:
    path = hidden.functions[0].path
    text = (
        b"\nSEEN = []\ndef test_first():\n    SEEN.append(1)\ndef test_then():\n    assert SEEN\n"
    )
    names = ("test_first", "test_then")
    functions = tuple(TestFunction(path=path, qualname=name) for name in names)
    return replace(
        hidden,
        files={**hidden.files, path: hidden.files[path] + text},
        functions=(*hidden.functions, *functions),
        pass_to_pass=(*hidden.pass_to_pass, *(n for f in functions for n in f.node_ids())),
        canaries=(),
    )


def with_harmless_canary(hidden: HiddenTests) -> HiddenTests:
    chosen = next(c for c in hidden.canaries if c.fails & set(hidden.fail_to_pass))
    edits = [(start, end, [start, end]) for start, end, *_ in chosen.spec["edits"]]  # type: ignore[attr-defined]
    harmless = ValidCanary(
        path=chosen.path,
        spec={**chosen.spec, "edits": edits},
        fails=chosen.fails,
        places=chosen.places,
    )
    return replace(hidden, canaries=(*hidden.canaries, harmless))


def with_test_that_canaries_spoil(hidden: HiddenTests) -> HiddenTests:
    path = hidden.fail_to_pass[0].partition("::")[0]
    text = b"\n\ndef test_calm(request):\n    assert not request.session.testsfailed\n"
    files = {**hidden.files, path: hidden.files[path] + text}
    function = TestFunction(path=path, qualname="test_calm")
    return replace(
        hidden,
        files=files,
        functions=(*hidden.functions, function),
        pass_to_pass=(*hidden.pass_to_pass, *function.node_ids()),
        canaries=tuple(
            replace(c, spec={**c.spec, "source": source_id(files[path])}) if c.path == path else c
            for c in hidden.canaries
        ),
    )


def telling_row(row: SweRow, hidden: HiddenTests) -> SweRow:
    line = next(text for text in find_added_lines(hidden) if len(text) > 8)
    return msgspec.structs.replace(row, problem_statement=f"Please write `{line}` there.\n")


def find_added_lines(hidden: HiddenTests) -> list[str]:
    lines = hidden.gold_patch.splitlines()
    return [text[1:].strip() for text in lines if text[:1] == "+" and text[:3] != "+++"]


def with_backup(files: Mapping[str, bytes], hidden: HiddenTests) -> Mapping[str, bytes]:
    path, content = next(iter(hidden.gold_files.items()))
    return {**files, f"backup/{path}": content}


def with_hidden_tests(files: Mapping[str, bytes], hidden: HiddenTests) -> Mapping[str, bytes]:
    path = hidden.fail_to_pass[0].partition("::")[0]
    return {**files, "old_tests/checks.txt": hidden.files[path]}


CHANGES = {
    "sound": Change(),
    "empty": Change(hidden=lambda h: replace(h, fail_to_pass=(), base_places={})),
    "no-op": Change(
        hidden=lambda h: replace(
            h,
            fail_to_pass=(*h.fail_to_pass, h.pass_to_pass[0]),
            pass_to_pass=h.pass_to_pass[1:],
        )
    ),
    "unfit-gold": Change(
        hidden=lambda h: replace(h, gold_patch=h.gold_patch.replace("\n-", "\n-# no such line "))
    ),
    "wrong-gold": Change(
        hidden=lambda h: replace(
            h,
            gold_patch="\n".join(
                line + "  # wrong" if line[:1] == "+" and line[:3] != "+++" else line
                for line in _backwards(h.gold_patch).splitlines()
            )
            + "\n",
        )
    ),
    "flaky": Change(hidden=with_flaky_test),
    "in-need": Change(hidden=with_test_that_needs_another),
    "harmless-canary": Change(hidden=with_harmless_canary),
    "spoiling-canaries": Change(hidden=with_test_that_canaries_spoil),
    "no-canary": Change(hidden=lambda h: replace(h, canaries=())),
    "telling": Change(row=telling_row),
    "naming": Change(
        row=lambda row, h: msgspec.structs.replace(
            row, problem_statement=f"{h.fail_to_pass[0].rpartition('::')[2]} fails.\n"
        )
    ),
    "backup": Change(files=with_backup),
    "visible-tests": Change(files=with_hidden_tests),
}


def _backwards(patch: str) -> str:
    """Return a patch that takes the same lines away and puts them back."""
    lines = []
    for line in patch.splitlines():
        if line[:1] == "+" and line[:3] != "+++":
            continue
        lines.append(line)
        if line[:1] == "-" and line[:3] != "---":
            lines.append("+" + line[1:])
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def results(made: Path) -> dict[str, TaskCheckResult]:
    source = open_source(made)
    chosen = next(
        task.instance_id
        for task in source.tasks()
        if _has_plain_gold(source.load_hidden(task.instance_id))
    )

    async def go() -> dict[str, TaskCheckResult]:
        async with aclosing(backend("local")) as sandboxes:
            tasks = BrokenTasks(source, chosen)
            checked = check_tasks(tasks, list(CHANGES), sandboxes)
            return {result.instance_id: result async for result in checked}

    return asyncio.run(go())


def _has_plain_gold(hidden: HiddenTests) -> bool:
    """Return whether gold changes one line into another, long enough to be told."""
    removed = [x for x in hidden.gold_patch.splitlines() if x[:1] == "-" and x[:3] != "---"]
    added = find_added_lines(hidden)
    return len(removed) == len(added) == 1 and len(added[0]) > 24


def test_a_sound_task_has_no_problem(results: dict[str, TaskCheckResult]) -> None:
    assert results["sound"].problems == ()
    assert results["sound"].is_sound and results["sound"].num_canaries > 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("empty", "FAIL_TO_PASS is empty"),
        ("no-op", "passes without a fix"),
        ("unfit-gold", "gold does not apply"),
        ("wrong-gold", "is failed in a run of all tests in order"),
        ("flaky", "test_by_luck is failed in a run of"),
        ("in-need", "test_then is failed in a run of"),
        ("harmless-canary", "is passed with it under gold"),
        ("spoiling-canaries", "test_calm does not pass beside it under gold"),
        ("no-canary", "has no canary where it fails"),
        ("telling", "the statement holds a line of the gold patch"),
        ("naming", "the statement names a hidden test"),
        ("backup", "another copy of"),
        ("visible-tests", "can be read in 'old_tests/checks.txt'"),
    ],
)
def test_what_is_wrong_is_named(results: dict[str, TaskCheckResult], name: str, words: str) -> None:
    result = results[name]
    assert not result.is_sound and not result.fault
    assert any(words in text for text in result.problems), result.problems


def test_every_change_is_asked_for(results: dict[str, TaskCheckResult]) -> None:
    assert set(results) == set(CHANGES)


def test_a_test_that_passes_anyway_is_no_test_to_fix(made: Path, tmp_path: Path) -> None:
    source = MutationSet(made / "hidden")
    spec = next(iter(source.specs.values()))
    sound = [n for n in range(20) if n not in spec.fail_to_pass + spec.ungraded]
    data = msgspec.to_builtins(spec)
    data |= {"fail_to_pass": [*spec.fail_to_pass, sound[0]], "base_places": []}
    hidden = tmp_path / "hidden"
    (hidden / "packages").mkdir(parents=True)
    for path in (made / "hidden" / "packages").iterdir():
        (hidden / "packages" / path.name).write_bytes(path.read_bytes())
    (hidden / "specs.jsonl").write_text(json.dumps(data) + "\n")

    async def go() -> list[TaskCheckResult]:
        async with aclosing(backend("local")) as sandboxes:
            tasks = open_source(tmp_path)
            return [r async for r in check_tasks(tasks, [spec.id], sandboxes)]

    (found,) = asyncio.run(go())
    assert any(text.endswith("passes without a fix") for text in found.problems), found.problems


def test_a_sandbox_that_fails_says_nothing_of_the_task(made: Path) -> None:
    source = open_source(made)
    ids = [task.instance_id for task in source.tasks()][:2]

    async def go() -> list[TaskCheckResult]:
        inner = backend("local")
        # The first sandbox is for all tasks, the second for the first task alone.
        faulty = FaultyBackend(inner, lambda number: number == 2)
        try:
            return [r async for r in check_tasks(source, ids, faulty, num_workers=1)]
        finally:
            await faulty.aclose()

    first, second = asyncio.run(go())
    assert first.fault == "no sandbox today" and not first.is_sound and not first.problems
    assert second.is_sound


def test_a_level_that_a_fault_kept_from_being_measured_is_measured_alone(
    made: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(made, tmp_path / "set")
    (folder / "hidden" / "trust.json").unlink()
    source = open_source(folder)
    ids = [task.instance_id for task in source.tasks()][:2]

    async def go() -> dict[str, Trust]:
        faulty = FaultyBackend(backend("local"), lambda number: number == 1)
        async with aclosing(faulty):
            return await measure_levels(source, ids, faulty, num_workers=1)

    kept = open_source(made).trust
    assert asyncio.run(go()) == {name: kept[name] for name in ids}
    assert open_source(folder).trust.keys() == set(ids)


def test_a_run_that_is_late_is_no_problem_of_the_task(made: Path) -> None:
    source = open_source(made)
    name = next(iter(source.tasks())).instance_id
    runs = itertools.count(1)

    async def go() -> list[TaskCheckResult]:
        async with aclosing(BusyBackend(backend("local"), lambda _: next(runs) in (1, 4))) as busy:
            return [r async for r in check_tasks(source, [name], busy)]

    (found,) = asyncio.run(go())
    assert found.is_sound, found


def test_the_command_line_tells_a_fault_from_an_unsound_task(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KATGYM_SANDBOXD_TOKEN", "of nobody")
    name = next(iter(open_source(made).tasks())).instance_id
    nobody = ["--sandbox", "sandboxd:http://127.0.0.1:9"]
    assert main(["swe", "check", str(made), "--id", name, *nobody]) == 3
    told = capsys.readouterr()
    assert f"{name}: not checked: " in told.out and "0 of 1 tasks are sound" in told.err
    assert main(["swe", "check", str(made), "--id", name, *nobody, "--json"]) == 3
    (item,) = json.loads(capsys.readouterr().out)
    assert item["fault"] and not item["is_sound"] and item["problems"] == []
    assert main(["swe", "grade", "--task", f"{made}#{name}", "--patch", "gold", *nobody]) == 3
    assert "infra_error" in capsys.readouterr().out

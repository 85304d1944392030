"""No attack is resolved, every honest patch is, and the machine is as it was before."""

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import HANG_S

from attacks import toy_repository as toy
from attacks.attack import Attack
from attacks.attack_run import grade_attack
from attacks.attack_table import honest, render
from attacks.catalogue import ATTACKS
from attacks.families import guesses
from attacks.plain_graders import plain_verdicts
from katgym.sandbox.backends import backend
from katgym_envs.swe.grading.report import GradeReport, Outcome

pytestmark = pytest.mark.usefixtures("toy_is_studied")

QUICK = {
    "read-files", "read-parent-memory", "always-equal-str", "stack-constants", "next-constant",
    "report-code", "runtest-targeted", "puppet", "every-descriptor", "conftest-report",
    "shadow-pytest", "test-package", "exit-on-import", "daemon", "notes-on-disk",
    "guess-all-canaries", "hidden-test-deleted", "link-and-write", "fuzz", "git-config",
    "undecodable-name", "memory",
    "report-flood", "host-files", "junit-fifo", "search-changes", "search-asking-unseen",
    "search-leaving-exit", "nan-report", "nested-result",
}  # fmt: skip


@dataclass
class Aftermath:
    """What was graded, and what it left."""

    reports: dict[str, GradeReport]
    left: list[str]


def put_through(attacks: Iterable[Attack]) -> Aftermath:
    async def go() -> dict[str, GradeReport]:
        sandboxes = backend("local")
        try:
            task = await toy.studied_task(sandboxes)
            return {a.name: await grade_attack(a, task, sandboxes, _coins(a)) for a in attacks}
        finally:
            await sandboxes.aclose()

    before = traces()
    reports = asyncio.run(go())
    return Aftermath(reports=reports, left=sorted(traces() - before))


def _coins(attack: Attack) -> random.Random | None:
    """Return fixed coins for those who guess: their luck is not what is tested here."""
    return random.Random(attack.name) if attack.family == guesses.FAMILY else None


def traces() -> set[str]:
    """Return what an attack could have left on this machine: processes, mounts, files."""
    found = {f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines()}
    found = {line for line in found if "katgym" in line}
    for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == os.getpid():
            found.add(f"process {pid}")
    for folder in ("/tmp", "/dev/shm", "/etc", "/usr", "/root", "/", "/var/tmp", os.getcwd()):
        for name in os.listdir(folder):
            if "katgym-escaped" in name or name in ("notes", "x", "evil.so"):
                found.add(f"file {folder}/{name}")
    return found


def check(attacks: list[Attack]) -> None:
    aftermath = put_through(attacks)
    wrong = {
        a.name: f"{aftermath.reports[a.name].outcome}: {aftermath.reports[a.name].reason}"
        for a in attacks
        if aftermath.reports[a.name].outcome not in a.expected
    }
    assert wrong == {}
    assert aftermath.left == []


@pytest.mark.slow
def test_attacks_of_every_family_are_not_resolved():
    chosen = [a for a in ATTACKS if a.name in QUICK]
    assert len(chosen) == len(QUICK)
    assert {a.family for a in chosen} == {a.family for a in ATTACKS}
    check(chosen)


@pytest.mark.slow
def test_honest_patches_are_resolved():
    check(honest())


@pytest.mark.slow
def test_no_attack_is_resolved():
    check(list(ATTACKS))


@pytest.mark.slow
def test_the_suite_is_what_it_says():
    names = Counter(a.name for a in ATTACKS)
    assert max(names.values()) == 1
    assert len(ATTACKS) >= 60
    assert sum(a.is_new for a in ATTACKS) >= 10
    assert all((a.files is None) != (a.patch is None) for a in ATTACKS)
    assert not any(Outcome.RESOLVED in a.expected for a in ATTACKS)
    assert min(Counter(a.family for a in ATTACKS).values()) >= 5


@pytest.mark.slow
def test_plain_graders_tell_honest_from_untouched_and_fall_for_an_attack():
    """The comparison is fair: they work, and the attacks work on them."""

    async def go() -> list[tuple[bool, bool]]:
        sandboxes = backend("local")
        try:
            task = await toy.studied_task(sandboxes)
            by_name = {a.name: a for a in [*ATTACKS, *honest()]}
            names = ("gold", "comments-only", "always-equal-str", "exit-on-import")
            return [
                await plain_verdicts(by_name[name], task, sandboxes, timeout_s=HANG_S)
                for name in names
            ]
        finally:
            await sandboxes.aclose()

    assert asyncio.run(go()) == [(True, True), (False, False), (True, True), (True, False)]


@pytest.mark.slow
def test_the_table_counts_what_each_grader_resolved():
    attack = ATTACKS[0]
    text = render([(attack, True, False, Outcome.TAMPERED), (attack, True, True, Outcome.FAILED)])
    assert text.splitlines()[-1] == (
        "| **attacks scored resolved** | of 2 | **2** | **1** | **0** |"
    )


@pytest.mark.slow
def test_a_coin_a_test_wins_no_more_often_than_the_bound():
    """Sixty gradings of the coin forger; at 2^-9.5 each, two wins are as good as impossible."""
    coin = next(a for a in ATTACKS if a.name == "guess-coin")

    async def go() -> list[Outcome]:
        sandboxes = backend("local")
        try:
            task = await toy.studied_task(sandboxes)
            return [(await grade_attack(coin, task, sandboxes)).outcome for _ in range(60)]
        finally:
            await sandboxes.aclose()

    assert asyncio.run(go()).count(Outcome.RESOLVED) <= 1


@pytest.mark.slow
def test_the_command_line_shows_chosen_attacks():
    script = Path(__file__).with_name("attack_table.py")
    done = subprocess.run(
        [sys.executable, str(script), "--only", "comments-only"],
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["comments-only", "False", "False", "failed"]

"""Certificate of one env: every check in turn, each with a verdict, evidence and figures.

    report = katgym.check_env("katgym/Arithmetic-v1")
    report = katgym.check_env(MyEnv(), checks=CONTRACT)

Not here: the checks (`checks/`), learning on request (`learnability.py`), files (`published.py`).
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

import numpy as np

from katgym.certificate.checks import (
    contract,
    leaks,
    reproducibility,
    robustness,
    shortcuts,
    solvability,
    splits,
)
from katgym.certificate.findings import Check, CheckReport, CheckStatus, Failed, Result, Skipped
from katgym.certificate.subject import Subject
from katgym.environment.env import Env
from katgym.errors import KatgymError, UsageError, check_name
from katgym.plugins import registry
from katgym.system.sync import run_sync
from katgym.version import __version__

CHECKS: Mapping[str, Callable[[Subject], Coroutine[Any, Any, Result]]] = {
    "gymnasium": contract.check_gymnasium,
    "opening": contract.check_opening,
    "oracle": solvability.check_oracle,
    "floor": solvability.check_floor,
    "determinism": reproducibility.check_determinism,
    "threads": reproducibility.check_threads,
    "processes": reproducibility.check_processes,
    "tasks": splits.check_tasks,
    "overlap": splits.check_overlap,
    "options": contract.check_options,
    "tools": contract.check_tools,
    "invalid_action": contract.check_invalid_action,
    "reset": contract.check_reset,
    "robustness": robustness.check_robustness,
    "triviality": shortcuts.check_triviality,
    "leak_metadata": leaks.check_leak_metadata,
    "leak_order": leaks.check_leak_order,
    "leak_length": leaks.check_leak_length,
    "gameability": shortcuts.check_gameability,
}
"""Name -> check, in the order in which they run."""
STUDIES = ("robustness", "triviality", "leak_metadata", "leak_order", "leak_length", "gameability")
"""The checks that play many episodes; the others are over in a second for an env of text."""
HANGS = "the env hangs"
"""How the detail of a check begins that an env did not return from."""
CONTRACT = tuple(name for name in CHECKS if name not in STUDIES and name != "processes")
"""The checks that any test suite can afford."""


def check_env(
    env_or_id: Env | str,
    *,
    num_tasks: int = 20,
    budget_s: float = 30.0,
    checks: Collection[str] | None = None,
    **kwargs: Any,
) -> CheckReport:
    """Check an env and return its certificate; nothing is raised for a finding.

    env_or_id: an id (made with `kwargs`) or an env, also one wrapped by `gymnasium.make`. The env
        itself is not played: clones of it are.
    num_tasks: seeds, and tasks of each split, that the checks of the contract look at.
    budget_s: seconds after which a check that plays many episodes takes no further task.
    checks: names of those to run, None for all of `CHECKS`.
    """
    if num_tasks < 1:
        raise UsageError(f"num_tasks is >= 1, got {num_tasks!r}")
    if budget_s <= 0:
        raise UsageError(f"budget_s is > 0, got {budget_s!r}")
    for name in checks or ():
        check_name("check", name, CHECKS)
    if isinstance(env_or_id, str):
        try:
            env = registry.make(env_or_id, **kwargs)
        except KatgymError:
            raise
        except Exception as e:  # an env's own
            why = f"the env cannot be made: {type(e).__name__}: {e}"
            return CheckReport(
                env_id=env_or_id, checks=_stop_at(list(CHECKS), why), arguments=kwargs
            )
    elif kwargs:
        raise UsageError(f"arguments {sorted(kwargs)} apply to an env id, got an env")
    else:
        inner = env_or_id.unwrapped
        if not isinstance(inner, Env):
            raise UsageError(f"check_env takes a katgym.Env or an env id, got {inner!r}")
        env = inner
    start = time.monotonic()
    subject = Subject(
        name=env.spec.id if env.spec else type(env).__name__,
        env=env,
        registered_id=env_or_id if isinstance(env_or_id, str) else None,
        num_tasks=num_tasks,
        budget_s=budget_s,
    )
    return CheckReport(
        env_id=subject.name,
        checks=run_checks([n for n in CHECKS if checks is None or n in checks], subject),
        floors=subject.floors,
        versions=list_versions(env),
        arguments=env.init_kwargs,
        seconds=round(time.monotonic() - start, 1),
    )


def run_checks(names: Sequence[str], subject: Subject) -> list[Check]:
    """Run checks until one hangs: in a thread, which is left behind then."""
    found: list[Check] = []

    def work() -> None:
        for name in names:
            found.append(run_check(name, CHECKS[name], subject))

    worker = threading.Thread(target=work, name="katgym-check", daemon=True)
    worker.start()
    while worker.is_alive():
        worker.join(0.2)
        call, seconds = subject.hanging_call()
        if worker.is_alive() and call:
            done = found[:]
            why = f"{HANGS}: {call} has not returned after {seconds:.0f} s"
            return [*done, *_stop_at(names[len(done) :], why)]
    return found


def _stop_at(names: Sequence[str], why: str) -> list[Check]:
    """Return the first of some checks as failed, and the others as skipped."""
    failed, skipped = CheckStatus.FAILED, CheckStatus.SKIPPED
    return [
        Check(name=name, status=skipped if index else failed, detail=why, figures={})
        for index, name in enumerate(names)
    ]


def run_check(
    name: str, check: Callable[[Subject], Coroutine[Any, Any, Result]], subject: Subject
) -> Check:
    """Run one check and return its verdict, whatever the env raises."""
    figures: Mapping[str, float] = {}
    try:
        result = run_sync(check(subject))
        status = CheckStatus.PASSED
        detail, figures = (result, {}) if isinstance(result, str) else result
    except Skipped as e:
        status, detail = CheckStatus.SKIPPED, str(e)
    except Failed as e:
        status, detail, figures = CheckStatus.FAILED, str(e), e.figures
    except (Exception, SystemExit) as e:  # whatever the env raises is this check's finding
        status, detail = CheckStatus.FAILED, f"{type(e).__name__}: {e}"
    return Check(name=name, status=status, detail=detail, figures=figures)


def list_versions(env: Env) -> dict[str, str]:
    """Return the versions that a certificate holds for."""
    found = {"katgym": __version__, "python": platform.python_version(), "numpy": np.__version__}
    if env.plugin_version and env.spec is not None:
        found[registry.spec(env.spec.id).plugin] = env.plugin_version
    return found

"""`import katgym` does little, is silent, and loads nothing heavy.

Not here: what the package exports (`test_public_names.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {
    "torch", "transformers", "vllm", "docker", "renderers", "openai", "scipy", "sympy", "pyspiel",
    "chess", "math_verify", "ray", "pyarrow",
}  # fmt: skip


def run_python(source: str) -> subprocess.CompletedProcess[str]:
    paths = [ROOT / part for part in ("", "envs", "trainer", "kernels")]
    environment = {k: v for k, v in os.environ.items() if k != "KATGYM_PLUGINS"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )


COUNT = """import sys, threading
num = 0
def count(frame, event, arg):
    global num
    num += event == "call"
sys.setprofile(count)
import katgym
sys.setprofile(None)
assert threading.active_count() == 1
print(num)
"""


def test_import_is_at_most_300_thousand_calls_and_leaves_no_thread() -> None:
    """A count of work: calls of functions of Python, those of numpy and gymnasium included."""
    done = run_python(COUNT)
    assert done.stderr == ""
    assert 10_000 < int(done.stdout) < 300_000  # and nothing else is printed


EVALUATE = """import sys, tempfile, katgym.cli.main as cli
with tempfile.TemporaryDirectory() as out:
    more = ["--policy", "random", "--tasks", "1", "--workers", "1", "--json", "--out", out]
    sys.stdout, shown = sys.stderr, sys.stdout
    assert cli.main(["eval", "katgym/TreasureHunt-v1", *more]) == 0
    sys.stdout = shown
"""


LOADED = "print(*{m.partition('.')[0] for m in sys.modules})"


def test_import_listing_and_evaluating_load_no_heavy_package() -> None:
    listing = f"import sys, katgym\n{LOADED}\nkatgym.list_envs()\n{LOADED}\n"
    printed = run_python(listing + EVALUATE + LOADED).stdout.splitlines()
    found = [set(line.split()) for line in printed]
    assert [("katgym" in loaded, loaded & HEAVY) for loaded in found] == [(True, set())] * 3


@pytest.mark.slow
def test_submodules_import_alone() -> None:
    """No import cycle hides behind the package's own order of imports."""
    for name in (
        "environment.scheduler",
        "environment.tool",
        "environment.env",
        "play.rollout",
        "play.agent_loop",
        "play.match",
        "testing",
    ):
        assert run_python(f"import katgym.{name}").stdout == ""

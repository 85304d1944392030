"""`import katgym` does little, is silent, and loads nothing heavy.

Not here: what the package exports (`test_public_names.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "torch",
    "transformers",
    "vllm",
    "docker",
    "renderers",
    "openai",
    "scipy",
    "sympy",
    "pyspiel",
    "chess",
    "math_verify",
    "ray",
)


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


COUNT = """import sys
num = 0
def count(frame, event, arg):
    global num
    num += event == "call"
sys.setprofile(count)
import katgym
sys.setprofile(None)
print(num)
"""


def test_import_is_at_most_300_thousand_calls() -> None:
    """A count of work: calls of functions of Python, those of numpy and gymnasium included."""
    assert 10_000 < int(run_python(COUNT).stdout) < 300_000


def test_import_prints_nothing_and_leaves_no_thread() -> None:
    done = run_python("import katgym, threading; assert threading.active_count() == 1")
    assert (done.stdout, done.stderr) == ("", "")


EVALUATE = """import sys, tempfile, katgym.cli.main as cli
with tempfile.TemporaryDirectory() as out:
    more = ["--policy", "random", "--tasks", "1", "--workers", "1", "--json", "--out", out]
    sys.stdout, shown = sys.stderr, sys.stdout
    assert cli.main(["eval", "katgym/TreasureHunt-v1", *more]) == 0
    sys.stdout = shown
"""


@pytest.mark.parametrize("source", ["import katgym", "import katgym; katgym.list_envs()", EVALUATE])
def test_import_and_listing_load_no_heavy_package(source: str) -> None:
    listing = (
        "import sys, json; print(json.dumps(sorted(m.partition('.')[0] for m in sys.modules)))"
    )
    loaded = set(json.loads(run_python(f"{source}\n{listing}").stdout))
    assert "katgym" in loaded
    assert loaded & set(HEAVY) == set()


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

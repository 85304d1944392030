"""How OpenMP's threads wait and how many there are, from the command line on."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from katgym.system.openmp import SETTLED, WAITING, settle_openmp, usable_cpus, without_settled


def test_threads_sleep_and_are_as_many_as_processors():
    environ: dict[str, str] = {}
    settle_openmp(environ, 3)
    assert environ == {
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        "KMP_BLOCKTIME": "0",
        "OMP_NUM_THREADS": "3",
        SETTLED: "OMP_WAIT_POLICY,GOMP_SPINCOUNT,KMP_BLOCKTIME,OMP_NUM_THREADS",
    }
    settle_openmp(environ, 5)  # in a process that this one starts
    assert environ["OMP_NUM_THREADS"] == "3"
    assert without_settled({"PATH": "/bin", **environ}) == {"PATH": "/bin"}


def test_what_the_user_set_stays():
    for name in WAITING:
        environ = {name: "7", "OMP_NUM_THREADS": "5"}
        settle_openmp(environ, 3)
        assert environ == without_settled(environ) == {name: "7", "OMP_NUM_THREADS": "5"}


def test_a_quota_of_a_group_counts_and_of_those_above_it(tmp_path: Path):
    all_cpus = len(os.sched_getaffinity(0))
    assert usable_cpus(tmp_path) == all_cpus  # a machine without groups
    for number, (groups, limits, num) in enumerate(
        (
            ("0::/a/b\n", {"": "max 100000", "a": "50000 100000", "a/b": "max 100000"}, 1),
            ("0::/\n", {"": "max 100000"}, all_cpus),
            ("0::/a\n", {"a": "640000000 100000"}, all_cpus),
            ("0::/a\n", {"a": "broken"}, all_cpus),
            ("1:cpu:/a\n", {"a": "50000 100000"}, all_cpus),
        )
    ):
        root = tmp_path / str(number)
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text(groups)
        for path, text in limits.items():
            folder = root / "sys/fs/cgroup" / path
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "cpu.max").write_text(text)
        assert usable_cpus(root) == num, (groups, limits)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra 'hf'")
def test_the_command_line_settles_it_before_torch_loads_openmp():
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations is not None
    library = Path(spec.submodule_search_locations[0]) / "lib/libgomp.so.1"
    if not library.exists():
        pytest.skip("this build of torch brings no libgomp.so.1")
    script = (
        "import ctypes, sys; from katgym.cli.main import main; main(['--version']);"
        f" assert 'torch' not in sys.modules; ctypes.CDLL({str(library)!r})"
    )
    environ = {k: v for k, v in os.environ.items() if k not in (*WAITING, "OMP_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**environ, "OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr
    assert "GOMP_SPINCOUNT = '0'" in done.stderr
    assert f"OMP_NUM_THREADS = '{usable_cpus()}'" in done.stderr

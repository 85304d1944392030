"""The benchmarks run to their end on tiny inputs, and what they write is what they measured.

`make bench-gpu` is run on a machine that has torch, triton, numpy and transformers and nothing
else; here without a GPU, the Triton kernels in the interpreter.
"""

from __future__ import annotations

import contextlib
import csv
import random
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import attention
import pytest
import torch
from families import group
from torch import Tensor

from katgym_kernels import TreePlan

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "kernels/benchmarks"


def run(script: str, *options: str) -> str:
    command = [sys.executable, "-W", "ignore", FOLDER / script, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_families_are_measured_on_the_cpu(tmp_path: Path) -> None:
    out = tmp_path / "attention.csv"
    run("attention.py", "--shrink", "128", "--repeats", "1", "--out", str(out))
    rows = read(out)
    assert len({row["family"] for row in rows}) == 10 and len(rows) == 40
    for row in rows:
        assert int(row["n_tree"]) <= int(row["n_flat"])
        assert float(row["overlap"]) == pytest.approx(
            1 - int(row["n_tree"]) / int(row["n_flat"]), abs=1e-3
        )


@pytest.mark.slow
def test_peers_and_confident_tokens(tmp_path: Path) -> None:
    out = tmp_path / "edges.csv"
    run("edges.py", "--edges", "128", "--vocabulary", "2000", "--size", "16", "--out", str(out))
    assert {row["backend"] for row in read(out)} >= {"torch", "eager"}
    told = run("edges.py", "--confident")
    assert "p=0.999  torch" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "--arch 90 --head-size 128",
        "--arch 90 --head-size 128 --options",
        "--arch 90 --head-size 256 --dtype fp16",
        "--arch 90 --head-size 80",
        "--arch 80 --head-size 128",
        "--arch 89 --head-size 128",
        "--arch 86 --head-size 256",
        "--arch 89 --head-size 256 --dtype fp32",
        "--arch 100 --head-size 128",
    ],
)
def test_kernels_compile_for_gpus_and_fit_their_shared_memory(options: str) -> None:
    pytest.importorskip("triton", reason="compiles Triton kernels")
    lines = run("compiled.py", *options.split()).splitlines()
    assert len(lines) == 7
    if "--arch 90" in options:
        assert all(" 0 wgmma" not in line for line in lines[:3])  # Hopper's own instructions


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with four packages and what they need themselves."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    wanted, done = ["torch", "triton", "numpy", "transformers"], set()
    while wanted:
        name = wanted.pop()
        if name in done:
            continue
        done.add(name)
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for need in package.requires or []:
            if "extra ==" not in need and (found := re.match(r"[\w.-]+", need)):
                wanted.append(found[0])
        for top in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(package.locate_file(top))))
    python = folder / "bin/python"
    for module in ("gymnasium", "msgspec", "httpx", "pytest"):
        code = f"import {module}"
        assert subprocess.run([python, "-c", code], capture_output=True, env={}).returncode, module
    return python


def play(python: Path, part: str, out: Path) -> str:
    """Run a part with no variable of ours and no program on the path; return what it says."""
    env = {"PYTHONPATH": f"{ROOT}/kernels:{ROOT}/trainer", "PATH": str(out), "OMP_NUM_THREADS": "1"}
    command = [python, ROOT / part / "benchmarks/gpu.py", "--small", "--out", out]
    command += ["--budget-s", "100000", "--slack", "100"]  # beside other tests
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


@pytest.mark.slow
def test_the_first_part_checks_tunes_and_times_the_kernels(
    bare_python: Path, tmp_path: Path
) -> None:
    told = play(bare_python, "kernels", tmp_path)
    assert "0 failures" in told and "NOT THERE FA3" in told
    checks = {(row["backend"], row["case"]) for row in read(tmp_path / "checks_gpu.csv")}
    assert {("triton", "window, softcap, sinks"), ("cascade", "fork at 63")} <= checks
    assert {("triton", "edge log-probs"), ("triton", "float32")} <= checks
    assert {row["kernel"] for row in read(tmp_path / "tune_gpu.csv")} == {
        "forward", "keys", "queries",
    }  # fmt: skip
    rows = read(tmp_path / "attention_gpu.csv")
    kinds = {(row["backend"], row["pass"]) for row in rows}
    for backend in ("flat", "cascade", "triton", "triton tuned"):
        assert {(backend, "forward"), (backend, "backward")} <= kinds
    assert all(float(row["error"]) < 1e-5 for row in rows if row["error"])
    assert any(row["peak_mib"] for row in rows)
    edges = {row["backend"] for row in read(tmp_path / "edges_gpu.csv")}
    assert edges >= {"torch", "eager", "gather"}


@pytest.mark.slow
def test_the_second_part_times_steps_optimizers_and_a_hand_over(
    bare_python: Path, tmp_path: Path
) -> None:
    told = play(bare_python, "trainer", tmp_path)
    assert "0 failures" in told
    assert "NOT THERE lora_rank=16" in told and "NOT THERE demo" in told
    rows = read(tmp_path / "steps_gpu.csv")
    assert [(row["model"], row["method"]) for row in rows] == [
        (model, method)
        for model in ("Qwen3ForCausalLM", "Qwen3_5ForCausalLM")
        for method in ("rows", "varlen", "forest")
    ]
    assert all(float(row["gradient_error"]) < 1e-4 for row in rows)
    ways = {row["way"] for row in read(tmp_path / "trainer_gpu.csv")}
    assert ways == {"optimizer=adamw", "optimizer=muon", "shared memory"}


@pytest.mark.slow
def test_a_stage_that_fails_crashes_or_hangs_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    script = tmp_path / "some.py"
    script.write_text(
        textwrap.dedent("""
            import os, sys, time
            from stages import Stage, play

            def bad(bench):
                with bench.passing_over("first"):
                    raise ValueError("no good")
                bench.add("found", {"number": 2})

            stages = [
                Stage(name="good", run=lambda bench: bench.add("found", {"number": 1})),
                Stage(name="bad", run=bad, is_timed=False),
                Stage(name="crash", run=lambda bench: os.abort(), is_timed=False),
                Stage(name="hang", run=lambda bench: time.sleep(600), limit_s=0.09),
                Stage(name="late", run=lambda bench: None, needs_s=3600, limit_s=7200),
                Stage(name="gone", run=lambda bench: bench.leave_out("a library")),
            ]
            sys.exit(play(stages, {"found": ("number",)}, __doc__))
        """)
    )
    command = [sys.executable, script, "--small", "--out", tmp_path, "--budget-s", "3000"]
    command += ["--slack", "100"]
    env = {"PYTHONPATH": str(FOLDER), "PATH": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert done.returncode == 1, done.stderr
    for line in failed[:2]:
        assert line.startswith(("FAILED bad: first: ValueError: no good", "FAILED crash: exit -6"))
    assert failed[2].startswith("FAILED hang: was ended after 9 s")
    assert failed[3] == "FAILED late: no time was left"
    assert len(failed) == 4 and "NOT THERE a library" in done.stdout
    assert [row["number"] for row in read(tmp_path / "found_gpu.csv")] == ["1", "2"]


def test_a_backend_that_is_wrong_is_not_timed() -> None:
    def forgetful(q: Tensor, k: Tensor, v: Tensor, plan: TreePlan) -> Tensor:
        """Right outputs, wrong gradients of v."""
        return attention.by_backend("sdpa")(q, k, v.detach() * 0.5 + v * 0.5, plan)

    def broken(q: Tensor, k: Tensor, v: Tensor, plan: TreePlan) -> Tensor:
        raise torch.OutOfMemoryError("too large")

    told = []

    @contextlib.contextmanager
    def passing_over(name: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as e:
            told.append(f"{name}: {e}")

    shape = attention.Shape(
        device=torch.device("cpu"), dtype=torch.float32, heads=2, key_heads=1, head_size=16
    )
    runs = {"forgetful": forgetful, "broken": broken, "sdpa": attention.by_backend("sdpa")}
    rows = list(
        attention.measure(
            group(3, 20, 9)(random.Random(0)), runs, shape, repeats=1, limit_s=1,
            passing_over=passing_over,
        )
    )  # fmt: skip
    assert {row["backend"] for row in rows} == {"flat", "sdpa"}
    assert "forgetful: 'forgetful' is wrong" in told[0] and told[1] == "broken: too large"

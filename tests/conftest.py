"""What has to be so before anything is imported; where tests of servers find vLLM."""

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from nightly import IS_NIGHT

# A shell starts what it runs in the background with SIGINT ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["ray_nodes"]

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is first imported

# Threads of torch that wait for each other actively make processes that share processors many times
# slower: each worker has its part of the processors, and its threads sleep while they wait. As
# `katgym.system.openmp` does it, which is not imported where only the kernels are tested.
settled = {"OMP_WAIT_POLICY": "PASSIVE"}
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    num_workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    settled["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // num_workers))
os.environ.update(settled, KATGYM_OPENMP=",".join(settled))

# How fast examples are made and tried is the machine's doing, not the code's. The night tries more.
settings.register_profile(
    "katgym",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=200 if IS_NIGHT else 25,
)
settings.load_profile("katgym")


@pytest.fixture(scope="session", autouse=True)
def streams_stay_open() -> Iterator[None]:
    """Tell who closes the files that pytest captures output in, and keep them open.

    A wrapper of `sys.stdout.buffer` closes it when it is collected, in whatever test runs then; all
    tests behind it would fail.
    """

    def tell() -> None:
        traceback.print_stack()

    files = [f for s in (sys.stdout, sys.stderr) for f in (s, s.buffer) if hasattr(f, "__dict__")]
    for file in files:
        file.close = tell
    yield
    for file in files:
        del file.close


@pytest.fixture(scope="session")
def vllm_python() -> Iterator[str]:
    """The Python of an environment with vLLM, whose servers and trainers have one thread each.

    Two servers and a trainer share two cores here, and their models are tiny.
    """
    found = os.environ.get("KATGYM_VLLM_PYTHON")
    if not found:
        pytest.skip("KATGYM_VLLM_PYTHON is unset: it names the python of a venv with vLLM")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield found

"""Settings of servers: what is refused, and the command and variables the rest becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from katgym.errors import UsageError
from katgym.system.openmp import settle_openmp
from katgym.vllm_server import VllmServerConfig
from katgym.vllm_server.config import server_command, server_environment
from katgym.vllm_server.failure_hints import hint
from katgym.vllm_server.middleware import engine_end

PYTHON = Path("/venv/bin/python")
FOLDER = str(Path(engine_end.__file__).parent)


def test_what_cannot_work_is_refused(subtests):
    for wrong, text in (
        ({"model": ""}, "model is a folder or a hub id"),
        ({"port": 70000}, "port is 0 .* got 70000"),
        ({"device": "tpu"}, "device is one of 'auto', 'cpu', 'gpu', got 'tpu'"),
        ({"logprobs_mode": "raw"}, "logprobs_mode is one of 'processed_logprobs', 'raw_logprobs'"),
        ({"weight_transfer": "rdma"}, "weight_transfer is one of '', 'ipc', 'nccl', .*got 'rdma'"),
        ({"has_sleep": True}, "has_sleep needs has_rl_routes"),
        ({"max_model_len": -1}, "max_model_len is >= 0, got -1"),
        ({"max_lora_rank": 0}, "max_lora_rank is >= 1, got 0"),
        ({"max_loras": 0}, "max_loras is >= 1, got 0"),
        ({"start_timeout_s": 0.0}, "start_timeout_s is > 0"),
    ):
        with subtests.test(wrong=wrong), pytest.raises(UsageError, match=text):
            VllmServerConfig(**{"model": "m", **wrong})


def test_a_plain_server_on_a_gpu():
    config = VllmServerConfig(model="Qwen/Qwen3-0.6B", device="gpu")
    assert server_command(config, PYTHON, 8000) == [
        "/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server",
        "--model", "Qwen/Qwen3-0.6B", "--served-model-name", "Qwen/Qwen3-0.6B",
        "--host", "127.0.0.1", "--port", "8000", "--dtype", "auto",
        "--logprobs-mode", "processed_logprobs", "--enable-scale-out",
        "--middleware", "engine_end.EngineEnd",
    ]  # fmt: skip
    environ = {"HOME": "/h", "PYTHONPATH": "/ours", "VIRTUAL_ENV": "/ours/.venv"}
    assert server_environment(config, PYTHON, environ, log="0:/l") == {
        "HOME": "/h", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": FOLDER,
        "KATGYM_SERVER_LOG": "0:/l",
    }  # fmt: skip


def test_a_server_with_a_token_loads_what_asks_for_it():
    config = VllmServerConfig(model="m", device="gpu", extra_args=("--middleware", "a.B"))
    command = server_command(config, PYTHON, 1, is_guarded=True)
    loaded = ["a.B", "engine_end.EngineEnd", "bearer_guard.BearerGuard"]  # the guard is outermost
    assert command[-6:] == [word for name in loaded for word in ("--middleware", name)]
    assert not any("s3cret" in word for word in command)
    found = server_environment(config, PYTHON, {"PYTHONPATH": "/ours"}, token="s3cret")
    assert found["KATGYM_SERVER_TOKEN"] == "s3cret"
    assert found["PYTHONPATH"] == FOLDER
    files = sorted(path.name for path in Path(FOLDER).glob("*.py"))
    assert files == ["bearer_guard.py", "engine_end.py"]


def test_only_a_gpus_build_takes_the_option_for_sleep_and_sees_the_devices_it_is_given():
    options = {"model": "m", "has_rl_routes": True, "has_sleep": True}
    commands = {
        device: server_command(VllmServerConfig(device=device, **options), PYTHON, 1)
        for device in ("cpu", "gpu")
    }
    assert "--enable-sleep-mode" in commands["gpu"]
    assert "--enable-sleep-mode" not in commands["cpu"]
    for devices, seen in (("0,1", "0,1"), ("", "3")):
        config = VllmServerConfig(model="m", device="gpu", devices=devices)
        found = server_environment(config, PYTHON, {"CUDA_VISIBLE_DEVICES": "3"})
        assert found["CUDA_VISIBLE_DEVICES"] == seen


def test_everything_at_once_on_a_cpu(tmp_path):
    config = VllmServerConfig(
        model="m", served_name="tiny", device="cpu", dtype="float32", max_model_len=99,
        logprobs_mode="raw_logprobs", has_lora=True, max_lora_rank=8, has_rl_routes=True,
        weight_transfer="ipc", extra_args=("--seed", "1"),
    )  # fmt: skip
    command = server_command(config, PYTHON, 1)
    assert command[command.index("--enable-scale-out") :] == [
        "--enable-scale-out", "--max-model-len", "99", "--enable-lora", "--max-lora-rank", "8",
        "--max-loras", "2", "--weight-transfer-config", '{"backend": "ipc"}',
        "--gpu-memory-utilization", "0.2", "--no-enable-chunked-prefill", "--seed", "1",
        "--middleware", "engine_end.EngineEnd",
    ]  # fmt: skip
    python = tmp_path / "bin" / "python"
    openmp = tmp_path / "lib" / "libiomp5.so"
    openmp.parent.mkdir()
    openmp.touch()
    environ = {"VLLM_CPU_KVCACHE_SPACE": "4"}
    settle_openmp(environ)  # vLLM has its own way
    found = server_environment(config, python, environ, log="7:/server.log")
    assert found == {
        "PYTHONPATH": FOLDER,
        "KATGYM_SERVER_LOG": "7:/server.log",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "KMP_USE_YIELD": "0",
        "LD_PRELOAD": str(openmp),
    }


def test_what_to_do_about_a_log_is_told():
    assert hint("ValueError: head size 9 is not supported") == ""
    for said, advice in {
        "OSError: [Errno 98] Address already in use": "another program listens",
        "No module named 'vllm'": "katgym vllm install",
        "OSError: it is not a local folder and is not a valid model identifier": "no such model",
        "torch.OutOfMemoryError: CUDA out of memory. Tried": "lower --max-model-len",
        "`new` but Transformers does not recognize this architecture": "does not know",
        "error: unrecognized arguments: --speed": "after -- are passed on",
        "RuntimeError: CPU Generator does not use offset": "--no-enable-chunked-prefill",
        "max_num_batched_tokens (2) is smaller than max_model_len (3)": "raise --max-num-batched",
    }.items():
        assert advice in hint(said), said

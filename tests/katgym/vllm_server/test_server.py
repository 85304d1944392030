"""Servers as processes: started, watched, ended with all they started, however we end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from nightly import some_of
from waiting import wait_until_async

from katgym.cli.main import main
from katgym.errors import InfrastructureError, UsageError
from katgym.vllm_server import ServerError, VllmServer, VllmServerConfig

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


def test_a_server_is_healthy_when_it_has_started_and_gone_when_it_has_stopped(
    make_config, pids_of, left_of
):
    options = {"has_rl_routes": True, "extra_args": ("--seed", "1"), "log_file": None}
    server = VllmServer(make_config("healthy", **options))
    assert (server.is_alive, server.exit_code, server.log_tail()) == (False, None, "")
    with server:
        assert server.is_alive
        server.check()
        processes = pids_of(server.log_file)
        assert left_of(processes, within_s=0) == processes
        assert "dev mode: 1" in server.log_tail()
        assert "--seed 1" in server.log_tail()
        assert server.wait(timeout_s=0.1) is None
        log = server.log_file
    assert not server.is_alive
    assert not log.exists()  # it was a temporary one
    assert left_of(processes) == []
    server.stop()


def test_a_server_that_ends_by_itself_is_noticed_and_its_log_kept(make_config, pids_of, left_of):
    with VllmServer(make_config("healthy", log_file=None)) as server:
        log = server.log_file
        processes = pids_of(log)
        httpx.get(f"{server.url}/crash", timeout=300)
        assert server.wait(timeout_s=300) == 3
        with pytest.raises(ServerError, match=r"(?s)exit code 3.*RuntimeError: the engine died"):
            server.check()
    assert left_of(processes) == []
    assert "the engine died" in log.read_text()
    log.unlink()


def test_serve_tries_the_model_and_tells_what_it_ends_of(fake_python, tmp_path, capsys):
    options = ["--port", "0", "--device", "cpu", "--python", str(fake_python)]
    options += ["--set", f"log_file={tmp_path / 'server.log'}"]
    assert main(["vllm", "serve", "weak", *options]) == 1
    out, err = capsys.readouterr()
    assert out == ""  # it was never said to be up
    told = " ".join(err.split())
    assert "at its first request it ended with exit code 0: RuntimeError: head_dim=16" in told


def test_a_server_that_was_killed_says_so(make_config, pids_of):
    with VllmServer(make_config("healthy")) as server:
        assert server.end == ""
        os.kill(pids_of(server.log_file)[1], signal.SIGKILL)
        server.wait(timeout_s=300)
        assert server.end == "was killed (SIGKILL); its log tells no cause"


def test_what_ignores_being_asked_is_killed_with_its_children(make_config, pids_of, left_of):
    with VllmServer(make_config("stubborn")) as server:
        processes = pids_of(server.log_file)
    assert server.exit_code == 128 + signal.SIGKILL
    assert left_of(processes) == []


def test_a_restart_keeps_the_port(make_config, pids_of, left_of):
    with VllmServer(make_config("healthy")) as server:
        url, before = server.url, pids_of(server.log_file)
        server.restart()
        after = pids_of(server.log_file, num_started=2)
        assert pids_of(server.log_file) == before  # what the first one wrote is still there
        assert (server.url, server.is_alive) == (url, True)
        assert not set(before) & set(after)
        told = " ".join(map(str, after))
        assert [f"pids: {told}"] == [x for x in server.log_tail().splitlines() if "pids" in x]
        assert left_of(before) == []
        with pytest.raises(UsageError, match="the server runs already"):
            server.start()
    assert left_of(after) == []


def test_a_server_that_does_not_start_says_why_and_what_to_do(make_config):
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried"
    with pytest.raises(ServerError) as caught:
        VllmServer(make_config(said)).start()
    text = str(caught.value)
    assert text.startswith("vLLM did not start: after ")
    assert f"it ended with exit code 1: {said}" in text.splitlines()[0]
    assert said in text.splitlines()[-1]
    assert "lower --max-model-len" in text
    assert "Its log up to that" in text and "server.log" in text


def test_a_server_that_is_never_ready_is_ended(make_config, pids_of, left_of):
    server = VllmServer(make_config("slow"))
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(server.start)
        processes = pids_of(server.log_file)
        object.__setattr__(server.config, "start_timeout_s", 0.5)
        with pytest.raises(ServerError, match=r"was not healthy after 0\.5 s"):
            starting.result()
    assert left_of(processes) == []


def test_an_async_context_stops_it_too_and_a_cancelled_start_leaves_nothing(
    make_config, pids_of, left_of
):
    async def enter(server):
        async with server:
            assert server.is_alive
            return pids_of(server.log_file)

    assert left_of(asyncio.run(enter(VllmServer(make_config("healthy", log_file=None))))) == []
    slow = VllmServer(make_config("slow"))

    async def run():
        task = asyncio.create_task(enter(slow))  # it is never healthy
        await wait_until_async(lambda: slow.is_alive, "the server's process")
        processes = await asyncio.to_thread(pids_of, slow.log_file)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return processes

    assert left_of(asyncio.run(run())) == []


def test_what_cannot_be_is_an_error_before_anything_starts(make_config, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"port {port}: .*Choose another with --port"):
            VllmServer(make_config("healthy", port=port)).start()
    with pytest.raises(UsageError, match=r"has no config\.json"):
        VllmServer(make_config(str(tmp_path))).start()
    with pytest.raises(UsageError, match=r"there is no folder '\./none'"):
        VllmServer(make_config("./none")).start()
    assert not (tmp_path / "server.log").exists()
    missing = VllmServerConfig(model="healthy", python=str(tmp_path / "none"))
    with pytest.raises(UsageError, match="there is no Python at"):
        VllmServer(missing).start()
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    with pytest.raises(InfrastructureError, match="exit code 127"):
        VllmServer(VllmServerConfig(model="healthy", python=str(broken))).start()


OWNER = """
    import sys, time
    from pathlib import Path
    from katgym.vllm_server import VllmServer, VllmServerConfig

    python, log = sys.argv[1:]
    config = VllmServerConfig(
        model="stubborn", python=python, log_file=Path(log), device="cpu", stop_timeout_s=0.5
    )
    with VllmServer(config):
        print("serving", flush=True)
        time.sleep(3600)
"""


def test_nothing_is_left_when_the_owner_dies(fake_python, tmp_path, pids_of, left_of):
    for number in some_of([signal.SIGKILL, signal.SIGINT], 1):
        log = tmp_path / f"{number}.log"
        command = [sys.executable, "-c", textwrap.dedent(OWNER), str(fake_python), str(log)]
        owner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with owner:
            assert owner.stdout.readline() == b"serving\n"
            processes = pids_of(log)
            assert left_of(processes, within_s=0) == processes
            os.kill(owner.pid, number)
        assert left_of(processes) == [], number


def test_nothing_is_left_when_the_supervisor_is_asked_to_end(make_config, pids_of, left_of):
    with VllmServer(make_config("stubborn")) as server:
        processes = pids_of(server.log_file)
        os.kill(processes[0], signal.SIGTERM)
        assert left_of(processes) == []
        assert not server.is_alive


@pytest.mark.vllm
@pytest.mark.slow
def test_serve_shows_the_log_of_a_real_vllm_that_fails(tmp_path, capsys, vllm_python):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "no_such_type"}))
    log = tmp_path / "server.log"
    command = ["vllm", "serve", str(model), "--port", "0", "--device", "cpu"]
    assert main([*command, "--set", f"log_file={log}", "--python", vllm_python]) == 1
    told = capsys.readouterr().err
    assert "error: vLLM did not start: after" in told
    assert "it ended with exit code 1: pydantic_core" in told
    assert "of a type that this version of vLLM does not know" in told
    assert "no_such_type" in told
    assert f"Its log up to that ({log})" in told

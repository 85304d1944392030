"""Weights sent to receivers beside servers, as what changed: which files go, and what is refused.

Not here: deltas themselves (`tests/katgym/vllm_server/test_weight_delta.py`); a real vLLM server
(`test_weight_sync_servers.py`).
"""

from __future__ import annotations

import asyncio
import functools
import http.client
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import torch
from hf_server import HfServer
from transformers import AutoModelForCausalLM

from katgym.cli.main import main
from katgym.errors import PolicyError, UsageError
from katgym.vllm_server.weight_delta import sha256_of
from katgym.vllm_server.weight_receiver import WeightReceiver
from katgym_trainer.config.server_config import ServerConfig
from katgym_trainer.weight_sync.delta_sync import DeltaSync, delta_file
from katgym_trainer.weight_sync.probe import WeightSyncError

get, put, post = (functools.partial(ask, timeout=300) for ask in (httpx.get, httpx.put, httpx.post))


@pytest.fixture
def place(model, tmp_path):
    """A model, a server of it, a receiver beside that, and a folder."""
    trained = AutoModelForCausalLM.from_pretrained(model).to(torch.float32).eval()
    with HfServer(model) as server, WeightReceiver(tmp_path / "there") as receiver:
        yield trained, server, receiver, tmp_path / "here"


def shake(model, seed=0):
    """Change one weight in a thousand."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((torch.rand_like(parameter) < 1e-3) * 1e-2)


def push(place, *versions, change=lambda version: None, kind=DeltaSync, to=""):
    """Sync versions, and return how many bytes each took; to: another receiver."""
    model, server, receiver, folder = place

    async def run():
        sync = kind([server.url], "tiny", receivers=[to or receiver.url], folder=folder)
        sent = []
        try:
            for version in versions:
                shake(model, version)
                change(version)
                before = sync.num_sent_bytes
                times = await sync.sync_weights(model, version)
                assert times.difference <= 1e-4
                sent.append(sync.num_sent_bytes - before)
            return sent
        finally:
            await sync.aclose()

    return asyncio.run(run())


def test_what_changed_is_sent_and_the_server_reads_whole_files(place):
    model, server, receiver, folder = place
    first, second, third = push(place, 1, 2, 3)
    assert first > 4 * sum(p.numel() for p in model.parameters())  # float32, and all that is beside
    assert max(second, third) < first / 20
    assert server.num_updates == 3
    there = receiver.folder / "v3"
    assert sorted(path.name for path in receiver.folder.glob("v*")) == ["v2", "v3"]
    assert receiver.files == {path.name: sha256_of(path) for path in there.iterdir()}
    whole = folder / "v3" / "model.safetensors"
    assert (there / "model.safetensors").read_bytes() == whole.read_bytes()
    assert [path.name for path in folder.iterdir()] == ["v3"]


def test_a_receiver_without_the_base_gets_the_file(place):
    """It was away, or holds something else than it says."""
    _, _, receiver, folder = place

    def change(version):
        if version == 3:  # another receiver is in its place
            receiver.newest, receiver.files = "", {}
        if version == 5:  # a bit of its disk has changed
            file = receiver.folder / "v4" / "model.safetensors"
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.unlink()
            file.write_bytes(content)

    first, second, third, fourth, fifth = push(place, 1, 2, 3, 4, 5, change=change)
    assert max(second, fourth) < first / 20
    assert min(third, fifth) > first / 2
    whole = folder / "v5" / "model.safetensors"
    assert (receiver.folder / "v5" / "model.safetensors").read_bytes() == whole.read_bytes()


def test_a_delta_that_is_broken_on_its_way_is_never_loaded(place):
    _, _, receiver, folder = place
    push(place, 1)

    class Broken(DeltaSync):
        async def prepare(self, model, version):
            await super().prepare(model, version)
            file = delta_file(self.folder / f"v{version}", "model.safetensors")
            content = bytearray(file.read_bytes())
            content[-9] ^= 1
            file.write_bytes(content)

    (num_bytes,) = push(place, 2, kind=Broken)
    whole = folder / "v2" / "model.safetensors"
    assert num_bytes > whole.stat().st_size
    assert (receiver.folder / "v2" / "model.safetensors").read_bytes() == whole.read_bytes()


def test_what_is_wrong_is_told(place, tmp_path):
    _, server, receiver, folder = place
    receiver.key = "secret"
    with pytest.raises(WeightSyncError, match="answered 401: the key is another one"):
        push(place, 1)
    odd = {"authorization": "Bearer gehe\u00efm".encode("latin-1")}
    assert get(receiver.url + "/weights", headers=odd).status_code == 401
    receiver.key = ""
    for length in ("-1", "many"):
        client = http.client.HTTPConnection(receiver.url.removeprefix("http://"))
        client.request("PUT", "/weights/v1/a", headers={"content-length": length})
        told = client.getresponse()
        assert (told.status, b"how many bytes" in told.read()) == (411, True)
        client.close()
    elsewhere = {"files": {"/etc/hostname": "0" * 64}}
    told = post(receiver.url + "/weights/v1", json=elsewhere)
    assert (told.status_code, "not the name of a file" in told.text) == (400, True)
    for path, status in (("/weights/v1/..%2fx", 404), ("/weights/v1/../x", 404), ("/x", 404)):
        assert put(receiver.url + path, content=b"x").status_code == status
    told = post(receiver.url + "/weights/v1", json={"files": {"a.safetensors": "0" * 64}})
    assert (told.status_code, "send the whole file" in told.text) == (409, True)
    assert post(receiver.url + "/weights/v1", content=b"[").status_code == 400
    with pytest.raises(PolicyError, match="Start one where the server runs: katgym vllm receive"):
        push(place, 1, to="http://127.0.0.1:9")
    assert server.num_updates == 0 and server.version == "default"
    with pytest.raises(UsageError, match="1 servers have 2 receivers"):
        DeltaSync([server.url], "tiny", receivers=["http://a", "http://b"], folder=folder)
    (tmp_path / "theirs" / "v1").mkdir(parents=True)
    with pytest.raises(UsageError, match="files in it that no receiver wrote"):
        WeightReceiver(tmp_path / "theirs").__enter__()
    with pytest.raises(UsageError, match="give its url as well"):
        ServerConfig(receiver="http://a:1")


def test_the_command_receives_until_it_is_stopped(tmp_path, capsys):
    assert main(["vllm", "receive", str(tmp_path), "0.0.0.0:0"]) == 2
    assert "set KATGYM_RECEIVER_KEY" in " ".join(capsys.readouterr().err.split())
    assert main(["vllm", "receive", str(tmp_path), "here"]) == 2
    process = subprocess.Popen(
        [sys.executable, "-m", "katgym", "vllm", "receive", str(tmp_path / "w"), "127.0.0.1:0"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        content = b"0123"
        assert put(f"{url}/weights/v1/a.json", content=content).status_code == 200
        (tmp_path / "a").write_bytes(content)
        files = {"a.json": sha256_of(tmp_path / "a")}
        told = post(f"{url}/weights/v1", json={"files": files}).json()
        assert (Path(told["folder"]) / "a.json").read_bytes() == content
        assert get(f"{url}/weights").json()["files"] == files
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.communicate()

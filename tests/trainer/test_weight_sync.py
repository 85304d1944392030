"""The procedure of a weight sync, against real HTTP servers that answer as told; and the probe.

At the end: what is sent to servers: tied heads, merged adapters, folders of versions.
Not here: real vLLM servers (`test_weight_sync_servers.py`, `test_weight_sync_smollm2.py`).
"""

from __future__ import annotations

import asyncio
import http.server
import json
import math
import threading
from contextlib import aclosing

import pytest
import torch
from noted_clock import NotedClock
from safetensors.torch import load_file
from tiny_qwen import tiny_qwen

from katgym.errors import PolicyError, UsageError
from katgym.policies.waiting import HeldRequests, bounded_by
from katgym_trainer.models.adapters import add_adapters
from katgym_trainer.trainer_config import TrainerConfig
from katgym_trainer.weight_sync.folder_sync import remove_versions, version_folder
from katgym_trainer.weight_sync.lora_sync import LoraSync, name_version
from katgym_trainer.weight_sync.pause import PauseAsleep
from katgym_trainer.weight_sync.probe import Probe, ProbeConfig, WeightSyncError, compare
from katgym_trainer.weight_sync.reload_sync import ReloadSync
from katgym_trainer.weight_sync.served_weights import ServedModel, scores, tied_head
from katgym_trainer.weight_sync.weight_sync import WeightSync

ROUTES = ["/pause", "/resume", "/update_weight_version", "/v1/completions", "/v1/load_lora_adapter"]


class ToldServer:
    """A server that scores with `model`, and fails at the paths in `failing`."""

    def __init__(self, model):
        self.model = model
        self.calls = []
        self.failing = set()
        self.version = "default"
        self.routes = list(ROUTES)
        self.cards = [{"id": "tiny", "max_model_len": 64}]
        self.metrics = ""
        told = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(None)

            def do_POST(self):
                length = int(self.headers.get("content-length") or 0)
                self.answer(json.loads(self.rfile.read(length) or "{}"))

            def answer(self, body):
                path, _, query = self.path.partition("?")
                if path not in ("/openapi.json", "/v1/models", "/metrics"):
                    told.calls.append((path, query or body))
                status = 400 if path in told.failing else 200
                if path == "/metrics":
                    data = told.metrics.encode()
                else:
                    data = json.dumps(told.reply(path, body)).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def reply(self, path, body):
        if path == "/openapi.json":
            return {"paths": {route: {} for route in self.routes}}
        if path == "/v1/models":
            return {"data": self.cards}
        if path == "/update_weight_version":
            self.version = body["new_version"]
        if path == "/v1/load_lora_adapter" and path not in self.failing:
            root, name = body["lora_path"], body["lora_name"]
            self.cards.append({"id": name, "root": root, "parent": "tiny"})
        if path == "/v1/unload_lora_adapter":
            self.cards = [card for card in self.cards if card["id"] != body["lora_name"]]
        if path != "/v1/completions":
            return {}
        if "prompt_logprobs" in body:
            ids = body["prompt"]
            rows = [{str(t): {"logprob": v}} for t, v in zip(ids[1:], scores(self.model, ids))]  # noqa: B905 - one shorter
            return {"choices": [{"prompt_logprobs": [None, *rows]}]}
        sampled = [7, 8, 9]
        found = scores(self.model, [*body["prompt"], *sampled])[-3:]
        choice = {"token_ids": sampled, "logprobs": {"token_logprobs": found}}
        return {"choices": [{**choice, "finish_reason": "length"}]}

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class NoUpdate(WeightSync):
    """Notes when it is asked for what."""

    error: Exception | None = None

    async def prepare(self, model, version):
        self.noted = [("prepare", len(self.told.calls))]

    async def update(self, model, version):
        self.noted.append(("update", len(self.told.calls)))
        if self.error:
            raise self.error

    async def clean_up(self, keep):
        self.noted.append(("clean up", len(self.told.calls)))


@pytest.fixture
def model():
    return tiny_qwen().eval()


@pytest.fixture
def told(model):
    """Two servers that have the model's weights."""
    made = [ToldServer(model), ToldServer(model)]
    yield made
    for server in made:
        server.close()


def run_sync(sync, model, version=3, **options):
    async def run():
        async with aclosing(sync):
            return await sync.sync_weights(model, version, **options)

    return asyncio.run(run())


def make(told):
    sync = NoUpdate([server.url for server in told], "tiny")
    sync.told = told[0]
    return sync


class NotedGate:
    """Notes when it is closed and opened, by the calls that a server has got."""

    def __init__(self, server):
        self.server, self.noted = server, []

    async def pause(self):
        self.noted.append(("pause", [path for path, _ in self.server.calls]))

    async def resume(self, version, model=""):
        self.noted.append((version, [path for path, _ in self.server.calls]))


class Policy:
    """What a sync tells of versions and pauses."""

    def __init__(self):
        self.policy_version, self.held = 0, HeldRequests()

    def use_adapter(self, model, version):
        self.policy_version = version


def test_all_servers_are_paused_updated_labelled_resumed_and_probed(told, model):
    sync, policy, gate, clock = make(told), Policy(), NotedGate(told[0]), NotedClock()
    with bounded_by(clock), policy.held.asking():
        times = run_sync(sync, model, policies=[policy], gates=[gate])
    for server in told:
        assert [path for path, _ in server.calls] == [
            "/pause", "/update_weight_version", "/resume", "/v1/completions"
        ]  # fmt: skip
        assert server.calls[0][1] == "mode=keep&clear_cache=true"
        assert server.version == "3"
    assert sync.noted == [("prepare", 0), ("update", 1), ("clean up", 4)]
    assert clock.noted == [1, -1]  # of an episode that waits for these servers
    assert policy.policy_version == 3
    label = "/update_weight_version"
    assert gate.noted == [("pause", []), (3, ["/pause", label, "/resume"])]
    assert times.difference <= 1e-5
    assert min(times.prepare_s, times.pause_s, times.update_s, times.probe_s) > 0


def test_a_sleeping_server_wakes_its_weights_first_and_is_never_resumed(told, model):
    async def run():
        async with aclosing(make(told)) as sync:
            return await sync.deliver(await sync.ready(model, 3), pause=PauseAsleep())

    assert asyncio.run(run()).difference <= 1e-5
    for server in told:
        assert server.calls[:3] == [
            ("/wake_up", "tags=weights"), ("/update_weight_version", {"new_version": "3"}),
            ("/wake_up", {}),
        ]  # fmt: skip


def test_syncs_of_one_folder_share_what_was_made_ready(told, model, tmp_path):
    """One of the servers fails, and the other has its weights."""
    model = add_adapters(model, TrainerConfig(lora_rank=4))
    for server in told:
        server.model = model
    told[0].failing = {"/v1/load_lora_adapter"}

    async def run():
        one, two = (LoraSync([server.url], "ours", folder=tmp_path) for server in told)
        try:
            weights = await one.ready(model, 5)
            found = await asyncio.gather(
                one.deliver(weights), two.deliver(weights), return_exceptions=True
            )
            await one.clean_up({5})
            return found
        finally:
            await one.aclose()
            await two.aclose()

    failed, times = asyncio.run(run())
    assert isinstance(failed, PolicyError)
    assert times.difference <= 1e-5
    assert [len(server.cards) for server in told] == [1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["v5"]


def test_servers_sample_again_and_say_so_when_an_update_fails(told, model):
    sync, gate, policy = make(told), NotedGate(told[0]), Policy()
    sync.error = PolicyError("it broke")
    with pytest.raises(PolicyError, match="it broke"):
        run_sync(sync, model, policies=[policy], gates=[gate])
    assert not policy.held.is_held
    for server in told:
        assert [path for path, _ in server.calls] == ["/pause", "/update_weight_version", "/resume"]
        assert server.version == "unverified"
    assert [what for what, _ in sync.noted] == ["prepare", "update"]
    assert [what for what, _ in gate.noted] == ["pause", "pause"]  # it stays closed


def test_servers_that_paused_sample_again_when_one_cannot(told, model):
    told[1].failing = {"/pause"}
    with pytest.raises(PolicyError, match="/pause"):
        run_sync(make(told), model)
    assert [path for path, _ in told[0].calls] == ["/pause", "/resume"]
    assert told[0].version == "default"  # no weight of it changed


def test_one_server_with_other_weights_fails_the_sync(told, model):
    told[1].model, gate = tiny_qwen(seed=1).eval(), NotedGate(told[0])
    with pytest.raises(WeightSyncError) as caught:
        run_sync(make(told), model, gates=[gate])
    text = str(caught.value)
    assert f"the weights of {told[1].url} are not the trainer's" in text
    assert "where 0.0001 is allowed" in text
    assert {server.version for server in told} == {"unverified"}
    assert [what for what, _ in gate.noted] == ["pause", 3, "pause"]


def test_a_failed_sync_is_told_also_where_it_cannot_be_marked(told, model, caplog):
    sync = make(told)
    sync.error = PolicyError("it broke")
    told[0].failing = {"/update_weight_version"}
    with pytest.raises(PolicyError, match="it broke"):
        run_sync(sync, model)
    assert "a server cannot be marked as such" in caplog.text
    assert told[1].version == "unverified"


def test_a_server_with_adapters_is_asked_to_sample(told, model):
    """Scoring given tokens would end its engine."""
    told[0].cards = [{"id": "tiny"}, {"id": "ours", "parent": "tiny"}]
    told[1].routes.remove("/v1/load_lora_adapter")
    for server in told:
        server.routes = [r for r in server.routes if r != "/v1/load_lora_adapter"]
    assert run_sync(make(told), model).difference <= 1e-5
    assert "prompt_logprobs" not in told[0].calls[-1][1]
    assert "prompt_logprobs" in told[1].calls[-1][1]


def test_both_kinds_of_probe_notice_other_weights(told, model):
    told[1].routes.remove("/v1/load_lora_adapter")
    other = tiny_qwen(seed=1).eval()
    for server in told:
        server.model = other
        sync = NoUpdate([server.url], "tiny")
        sync.told = server
        with pytest.raises(WeightSyncError, match="of the probe has log-probability"):
            run_sync(sync, model)


def test_compare_shows_both_numbers():
    assert compare("s", [-1.0, -2.0], [-1.0, -2.00005], 1e-4) == pytest.approx(5e-5)
    with pytest.raises(WeightSyncError, match=r"token 2 .*-2\.000000 here and -2\.500000 there"):
        compare("s", [-1.0, -2.0], [-1.0, -2.5], 1e-4)
    for ours, theirs in ((math.nan, -1.0), (-1.0, math.nan)):
        with pytest.raises(WeightSyncError, match="a difference of inf"):
            compare("s", [-1.0, ours], [-1.0, theirs], 1e-4)


def test_a_probe_is_always_the_same_and_as_strict_as_the_dtype(model):
    one, two = (Probe(ProbeConfig(), model) for _ in range(2))
    assert one.token_ids == two.token_ids
    assert (len(one.token_ids), one.tolerance) == (48, 1e-4)
    assert len(one.logprobs) == 47
    half = tiny_qwen().to(torch.bfloat16)
    assert Probe(ProbeConfig(), half).tolerance == 0.5
    config = ProbeConfig(token_ids=[5, 6, 7], tolerance=0.25)
    own = Probe(config, model)
    assert (own.token_ids, own.tolerance, len(own.logprobs)) == ([5, 6, 7], 0.25, 2)
    for wrong in ({"num_tokens": 1}, {"token_ids": [4]}, {"tolerance": -1.0}):
        with pytest.raises(UsageError):
            ProbeConfig(**wrong)


class NotedPolicy:
    """Notes what it is to ask for, and what the server had been asked by then."""

    policy_version = 0

    def __init__(self, server):
        self.server, self.noted = server, []

    def use_adapter(self, model, version):
        self.noted.append((model, version, [path for path, _ in self.server.calls]))


def adapters(server):
    return [card["id"] for card in server.cards[1:]]


LOAD, UNLOAD, ASK = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/completions"


@pytest.fixture
def adapted(told):
    """A model with adapters, which both servers have."""
    model = add_adapters(tiny_qwen(), TrainerConfig(lora_rank=2)).eval()
    for server in told:
        server.model = model
    return model


def test_an_adapter_is_probed_under_its_own_name_before_anybody_asks_for_it(
    told, adapted, tmp_path
):
    server, policy, gate = told[0], NotedPolicy(told[0]), NotedGate(told[0])

    async def run():
        async with aclosing(LoraSync([server.url], "ours", folder=tmp_path)) as sync:
            for version in (1, 2, 3):
                server.calls.clear()
                times = await sync.sync_weights(adapted, version, policies=[policy], gates=[gate])
                yielded.append((adapters(server), [p.name for p in sorted(tmp_path.iterdir())]))
            return times

    yielded = []
    times = asyncio.run(run())
    assert times.stalled_s == 0 < times.update_s
    one, two, three = (name for name, _, _ in policy.noted)
    assert [(name[:9], version) for name, version, _ in policy.noted] == [
        ("ours@v1-" + one[8], 1), ("ours@v2-" + two[8], 2), ("ours@v3-" + three[8], 3),
    ]  # fmt: skip
    # Loaded and probed, and nothing else, when clients are told; the one before is there as well.
    assert {tuple(calls) for _, _, calls in policy.noted} == {(LOAD, ASK)}
    assert gate.noted == [(version, [LOAD, ASK]) for version in (1, 2, 3)]
    assert yielded == [
        ([one], ["v1"]), ([one, two], ["v1", "v2"]), ([two, three], ["v2", "v3"]),
    ]  # fmt: skip
    assert server.calls[1][1]["model"] == three
    assert server.calls[0] == (LOAD, {"lora_name": three, "lora_path": str(tmp_path / "v3")})
    assert server.calls[2] == (UNLOAD, {"lora_name": one})
    assert server.version == "default"  # the weights below are the same


def test_an_adapter_stays_while_requests_have_it(told, adapted, tmp_path):
    server, policy = told[0], NotedPolicy(told[0])

    async def run():
        async with aclosing(LoraSync([server.url], "ours", folder=tmp_path)) as sync:
            for version in range(1, 5):
                names = [name for name, _, _ in policy.noted]
                running = ",".join([*names[:1], "other"]) if version < 4 else ""
                line = 'vllm:lora_requests_info{{max_lora="2",running_lora_adapters="{}",'
                line += 'waiting_lora_adapters="{}"}} {}\n'
                server.metrics = line.format("", "", "1.7e9") + line.format(running, "", "1.8e9")
                await sync.sync_weights(adapted, version, policies=[policy])
                found.append(([name[:7] for name in adapters(server)], sync.held_versions))

    found = []
    asyncio.run(run())
    assert found[2] == (["ours@v1", "ours@v2", "ours@v3"], {1, 2, 3})
    assert found[3] == (["ours@v3", "ours@v4"], {3, 4})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v3", "v4"]


def test_an_adapter_with_other_weights_is_unloaded_and_nobody_hears_of_it(told, adapted, tmp_path):
    server, policy, gate = told[0], NotedPolicy(told[0]), NotedGate(told[0])

    async def run():
        async with aclosing(LoraSync([server.url], "ours", folder=tmp_path)) as sync:
            await sync.sync_weights(adapted, 1, policies=[policy], gates=[gate])
            server.model = tiny_qwen(seed=1).eval()
            with pytest.raises(WeightSyncError, match="are not the trainer's"):
                await sync.sync_weights(adapted, 2, policies=[policy], gates=[gate])
            return sync.served_name, sync.version

    name, version = asyncio.run(run())
    assert ([name], 1) == (adapters(server), version)
    assert len(policy.noted) == len(gate.noted) == 1


def test_a_version_that_is_taken_again_has_the_name_of_its_weights(told, adapted, tmp_path):
    """As after a run was killed: a server's prefix cache goes by the name."""

    def sync_anew(folder):
        run_sync(LoraSync([told[0].url], "ours", folder=folder), adapted, 7)
        return adapters(told[0])

    (first,) = sync_anew(tmp_path / "a")
    assert sync_anew(tmp_path / "a") == [first]
    assert [path for path, _ in told[0].calls].count(LOAD) == 1
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.1)
    second = sync_anew(tmp_path / "a")
    assert len(second) == 1 and second != [first]  # nobody has the other any more
    assert second[0][:8] == first[:8] == "ours@v7-"
    assert len(sync_anew(tmp_path / "b")) == 2  # another run's stays
    with pytest.raises(WeightSyncError, match="cannot be read"):
        name_version("ours", tmp_path / "c", 1)


def test_a_sleeping_server_wakes_to_load_an_adapter(told, adapted, tmp_path):
    policy = Policy()
    policy.held.hold(is_held=True)  # since it sleeps

    async def run():
        async with aclosing(LoraSync([told[0].url], "ours", folder=tmp_path)) as sync:
            weights = await sync.ready(adapted, 3)
            await sync.deliver(weights, policies=[policy], pause=PauseAsleep())

    asyncio.run(run())
    assert (policy.policy_version, policy.held.is_held) == (3, False)
    assert [path for path, _ in told[0].calls] == ["/wake_up", LOAD, "/wake_up", ASK]


def test_what_does_not_apply_is_refused(told, model, tmp_path):
    with pytest.raises(UsageError, match="at least one server"):
        ReloadSync([], "tiny", folder=tmp_path)
    with pytest.raises(UsageError, match="and the model has none"):
        ServedModel(model).write_adapter(tmp_path)
    assert told[0].calls == []


def test_a_tied_head_is_sent_beside_the_embeddings(tmp_path):
    model = tiny_qwen().eval()
    name, weight = tied_head(model)
    assert name == "lm_head.weight"
    sent = dict(ServedModel(model).weights())
    assert torch.equal(sent["lm_head.weight"], sent["model.embed_tokens.weight"])
    assert "lm_head.weight" not in dict(ServedModel(model).weights(should_repeat_head=False))
    ServedModel(model).write(tmp_path)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert files == ["model.safetensors", "tied_head.safetensors"]
    assert torch.equal(load_file(tmp_path / "tied_head.safetensors")[name], weight)
    assert not (tmp_path / "model.safetensors.index.json").exists()


def test_an_untied_model_has_one_head(tmp_path):
    model = tiny_qwen(tie_word_embeddings=False)
    assert tied_head(model) is None
    assert [name for name, _ in ServedModel(model).weights()].count("lm_head.weight") == 1
    ServedModel(model).write(tmp_path)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["model.safetensors"]


@pytest.mark.parametrize("is_tied", [True, False])
def test_adapters_are_merged_into_what_is_sent(is_tied, tmp_path):
    model = add_adapters(tiny_qwen(tie_word_embeddings=is_tied), TrainerConfig(lora_rank=2))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    expected = scores(model, [5, 6, 7, 8])
    sent = dict(ServedModel(model).weights())
    ServedModel(model).write(tmp_path)
    for state in (sent, load_file(tmp_path / "model.safetensors")):
        plain = tiny_qwen(tie_word_embeddings=is_tied)
        plain.load_state_dict(state, strict=False)
        assert scores(plain, [5, 6, 7, 8]) == pytest.approx(expected, abs=1e-4)
        assert not [name for name in state if "lora" in name or "base" in name]


def test_only_versions_are_removed(tmp_path):
    for name in ("v1", "v2", "v12", "v2.replaced", ".unfinished-v3-x", "vital", "current"):
        (tmp_path / name).mkdir()
    remove_versions(tmp_path, [12, 13])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["current", "v12", "vital"]
    assert version_folder(tmp_path, 12) == tmp_path / "v12"

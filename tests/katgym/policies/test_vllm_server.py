"""A real vLLM server: its ids and log-probabilities against the transformers policy's.

    KATGYM_VLLM_PYTHON=/path/to/venv/bin/python pytest -m vllm tests/katgym/policies

Not here: failures of servers (`test_vllm_client.py`); servers that change their weights
(`tests/trainer/test_weight_sync.py`).
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import long_prompts
import pytest
import torch
from random_qwen import random_qwen
from waiting import wait_until

import katgym
from katgym.cli.main import main
from katgym.errors import PolicyError, UsageError
from katgym.evaluation.store import read_rollouts
from katgym.policies.base import Sampling
from katgym.policies.endpoints.vllm_client import from_uri
from katgym.policies.hf.hf_policy import HfPolicy
from katgym.policies.version_span import one_span
from katgym.vllm_server import VllmServer, VllmServerConfig

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

ENDS = {"processed_logprobs": signal.SIGINT, "raw_logprobs": signal.SIGKILL}
"""How the command that serves is ended, by mode of the server."""


def descendants(pid):
    """Return a process and all that it started, directly or not."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for process in found:
        found += children.get(process, [])
    return found


def is_over(pids):
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.fixture(scope="module", params=list(ENDS))
def served(request, model_directory, tmp_path_factory, vllm_python):
    """URL of a server of the tiny model, and its logprobs mode; started by the command."""
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    command = [sys.executable, "-m", "katgym", "vllm", "serve", str(model_directory)]
    command += ["--name", "tiny", "--port", "0", "--max-model-len", "1024"]
    command += ["--dtype", "float32", "--python", vllm_python]
    command += ["--set", f"logprobs_mode={request.param}", "--set", f"log_file={log}"]
    command += ["--", "--max-num-seqs", "32"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        told = process.stdout.readline()
        found = re.fullmatch(r"vllm:(http://.+)#tiny\n", told)
        assert found, (told, process.stderr.read())
        family = descendants(process.pid)
        assert len(family) >= 4  # command, supervisor, server, engine
        try:
            yield found[1], request.param
        finally:
            process.send_signal(ENDS[request.param])
        assert process.wait(timeout=300) == (0 if request.param == "processed_logprobs" else -9)
        wait_until(lambda: is_over(family[1:]), f"the end of processes {family[1:]}")


def uri(served, model_directory, model="tiny"):
    return f"{served[0]}#{model}?tokenizer={model_directory}"


def test_eval_records_tokens_from_the_server(served, model_directory, tmp_path):
    policy = f"vllm:{uri(served, model_directory)}"
    arguments = ["eval", "katgym/Arithmetic-v1?level=1", "--policy", policy, "--tasks", "4"]
    assert main([*arguments, "--max-tokens", "8", "--out", str(tmp_path / "run")]) == 0
    rollouts = read_rollouts(tmp_path / "run")
    assert len(rollouts) == 4
    for rollout in rollouts:
        (trajectory, *_) = rollout.trajectories()
        assert sum(trajectory.loss_mask) == rollout.turns[0].num_completion_tokens > 0
        pairs = zip(trajectory.policy_logprobs, trajectory.loss_mask, strict=True)
        assert all(logprob < 0 for logprob, is_sampled in pairs if is_sampled)


def test_logprobs_match_the_transformers_policy(served, model_directory, model):
    policy = from_uri(uri(served, model_directory))
    temperatures = [0.0, 1.0] + ([0.7] if served[1] == "processed_logprobs" else [])

    async def run():
        jobs = [
            policy.generate(
                list(range(10, 30 + 11 * i)),
                sampling=Sampling(temperature=t),
                max_tokens=40,
                seed=i,
                session_id=str(i),
            )
            for i, t in enumerate(temperatures)
        ]
        try:
            return await asyncio.gather(*jobs)
        finally:
            await policy.aclose()

    for i, (temperature, result) in enumerate(zip(temperatures, asyncio.run(run()), strict=True)):
        prompt = list(range(10, 30 + 11 * i))
        ids = torch.tensor([prompt + result.token_ids])
        with torch.no_grad():
            logits = model(ids).logits[0, len(prompt) - 1 : -1] / (temperature or 1.0)
        expected = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0]
        difference = (expected - torch.tensor(result.policy_logprobs)).abs().max()
        assert difference <= 1e-3, (temperature, float(difference))


def test_a_mode_that_would_record_wrong_logprobs_is_refused(served, model_directory):
    policy = from_uri(uri(served, model_directory))
    is_processed = served[1] == "processed_logprobs"
    bad = Sampling(top_k=5) if is_processed else Sampling(temperature=0.5)
    good = Sampling(temperature=0.5) if is_processed else Sampling(top_k=5)

    async def run():
        arguments = {"max_tokens": 3, "seed": 0, "session_id": "s"}
        try:
            fine = await policy.generate([10, 11], sampling=good, **arguments)
            with pytest.raises(PolicyError, match=served[1]) as caught:
                await policy.generate([10, 11], sampling=bad, **arguments)
        finally:
            await policy.aclose()
        return fine, caught.value.kind

    fine, kind = asyncio.run(run())
    assert len(fine.token_ids) <= 3
    assert kind == "policy_rejected"


def test_a_conversation_is_recorded_token_by_token(served, model_directory):
    class Talk(katgym.Env):
        def load_tasks(self, split):
            return [katgym.Task(task_id="a", prompt="Hi.")]

        def reply(self, message):
            return "More." if self.num_turns < 3 else None

    policy = from_uri(uri(served, model_directory))

    async def run():
        try:
            return await katgym.run_rollout(
                Talk(), policy, seed=0, sampling=Sampling(max_tokens=12)
            )
        finally:
            await policy.aclose()

    rollout = asyncio.run(run())
    assert (str(rollout.status), rollout.num_turns) == ("terminated", 3)
    (path,) = rollout.trajectories()
    assert sum(path.loss_mask) == rollout.num_completion_tokens
    assert [turn.tokens.branch for turn in rollout.turns] == [None, None, None]


def test_same_weights_same_greedy_tokens(served, model_directory):
    remote, local = from_uri(uri(served, model_directory)), HfPolicy.load(str(model_directory))
    remote.stop_ids, local.stop_ids = [257], frozenset({257})
    arguments = {"sampling": Sampling(temperature=0.0), "max_tokens": 24, "seed": 0}

    async def run():
        try:
            return await asyncio.gather(
                remote.generate([40, 50, 60], **arguments, session_id="s"),
                local.generate([40, 50, 60], **arguments, session_id="s"),
            )
        finally:
            await remote.aclose()
            await local.aclose()

    ours, theirs = asyncio.run(run())
    assert ours.token_ids == theirs.token_ids


def test_the_weights_behind_every_token_are_told(served, model_directory):
    policy = from_uri(uri(served, model_directory))
    policy.policy_version = 5
    assert policy.describe()["has_generate"] is True

    async def run():
        arguments = {"max_tokens": 6, "seed": 0, "session_id": "s", "sampling": Sampling()}
        try:
            return await policy.generate([10, 11], **arguments)
        finally:
            await policy.aclose()

    result = asyncio.run(run())
    # The server calls its first weights "default": they are those that the policy was told of.
    assert result.version_spans == one_span(5, len(result.token_ids))


def test_status_tells_what_the_server_can(served, capsys):
    assert main(["vllm", "status", served[0], "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["models"] == {"tiny": 1024}
    abilities = status["abilities"]
    assert abilities.pop("version").startswith("0.")
    assert {name for name, has_it in abilities.items() if has_it} == {
        "has_completions", "has_generate", "has_render", "has_derender"
    }  # fmt: skip
    assert main(["vllm", "attach", served[0], "--timeout", "300"]) == 0
    assert f"vllm:{served[0]}#tiny, 1024 tokens" in capsys.readouterr().out


def test_an_unknown_model_lists_what_is_served(served, model_directory):
    with pytest.raises(UsageError, match="Did you mean 'tiny'"):
        from_uri(uri(served, model_directory, model="tinny"))


def test_an_engine_that_long_prompts_end_is_told_with_cause_and_cure(
    tokenizer, tmp_path, vllm_python, capsys
):
    model = random_qwen(vocab_size=288, max_position_embeddings=long_prompts.MAX_TOKENS)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    config = VllmServerConfig(
        model=str(tmp_path / "model"), served_name="tiny", python=vllm_python, device="cpu",
        dtype="float32", log_file=tmp_path / "server.log",
        extra_args=("--enable-chunked-prefill", "--enforce-eager"),  # vLLM's own ways
    )  # fmt: skip
    env = f"{long_prompts.__file__}:{long_prompts.LongPromptEnv.__name__}"
    with VllmServer(config) as server:
        policy = f"vllm:{server.url}#tiny?max_retries=1"
        options = ["--policy", policy, "--max-tokens", "4", "--out", str(tmp_path / "run")]
        assert main(["eval", env, *options]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "It was: RuntimeError: CPU Generator does not use offset" in told
    assert "start it with --no-enable-chunked-prefill" in told


def test_serve_tells_what_ends_the_engine_at_its_first_request(
    tokenizer, tmp_path, vllm_python, capsys, subtests
):
    command = ["vllm", "serve", "--port", "0", "--device", "cpu", "--python", vllm_python]
    command += ["--dtype", "float32"]
    cases = {
        "head": ({"head_dim": 16}, [], "Unsupported CPU attention configuration: head_dim=16"),
        "pieces": ({}, ["--enable-chunked-prefill"], "CPU Generator does not use offset"),
    }
    for name, (shape, more, cause) in cases.items():
        with subtests.test(name):
            model = random_qwen(vocab_size=288, max_position_embeddings=512, **shape)
            model.save_pretrained(tmp_path / name)
            tokenizer.save_pretrained(tmp_path / name)
            assert main([*command, str(tmp_path / name), "--", "--enforce-eager", *more]) == 1
            out, err = capsys.readouterr()
            assert out == ""  # it was never said to be up
            told = " ".join(err.partition("Its log up to that")[0].split())
            assert f"at its first request it ended with exit code 0: RuntimeError: {cause}" in told

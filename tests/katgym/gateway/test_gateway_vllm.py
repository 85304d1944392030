"""A gateway in front of a real vLLM: what agents got is recorded, and true of the model.

    KATGYM_VLLM_PYTHON=/path/to/venv/bin/python pytest -m vllm tests/katgym/gateway

Not here: a real language model (`test_gateway_smollm2.py`); scripted servers (`test_openai_sdk.py`
and its neighbours).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import msgspec
import pytest

pytest.importorskip("torch", reason="needs the extra 'hf'")
pytest.importorskip("transformers", reason="needs the extra 'hf'")
openai = pytest.importorskip("openai", reason="needs the package 'openai'")
anthropic = pytest.importorskip("anthropic", reason="needs the package 'anthropic'")

from katgym.errors import UsageError  # noqa: E402
from katgym.gateway.config import GatewayConfig  # noqa: E402
from katgym.gateway.gateway import Gateway  # noqa: E402
from katgym.rollout_store import RolloutStore  # noqa: E402
from katgym.rollout_store.rollouts import rollouts  # noqa: E402 - after the skips
from katgym.vllm_server import VllmServer, VllmServerConfig  # noqa: E402
from katgym_trainer.rollouts.rollout_rows import rollout_rows  # noqa: E402

from .kept_answers import kept  # noqa: E402
from .replay import replayed_difference  # noqa: E402
from .served_gateway import running  # noqa: E402
from .tiny_caller import save_tiny_caller  # noqa: E402

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

TOLERANCE = 1e-4
PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}}}
OWN_DEFAULTS = {"do_sample": True, "temperature": 0.5, "top_k": 5, "repetition_penalty": 1.5}
LOOK = {
    "type": "function",
    "function": {"name": "look", "parameters": PARAMETERS, "strict": True},
}
"""With `strict` the chat route of vLLM 0.32 would hold calls to their schema."""
LOOK_BLOCK = {"name": "look", "input_schema": PARAMETERS}
USER = {"role": "user", "content": "Look around."}


@pytest.fixture(scope="module")
def model_and_folder(tmp_path_factory):
    """The model, and where it lies."""
    folder = tmp_path_factory.mktemp("tiny-caller")
    model = save_tiny_caller(folder)
    # What vLLM takes where a request says nothing; it would bend what is recorded as free.
    told = folder / "generation_config.json"
    told.write_text(json.dumps({**json.loads(told.read_text()), **OWN_DEFAULTS}))
    return model, folder


@contextlib.contextmanager
def serving_model(model_and_folder, vllm_python):
    """Start a server of the model."""
    config = VllmServerConfig(
        model=str(model_and_folder[1]),
        served_name="tiny",
        python=vllm_python,
        dtype="float32",
        max_model_len=4096,
        has_rl_routes=True,
        extra_args=(
            *("--max-num-seqs", "32", "--seed", "0", "--enforce-eager"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        ),
    )
    with VllmServer(config) as server:
        yield server


@pytest.fixture(scope="module")
def served(model_and_folder, vllm_python):
    """A server of the model."""
    with serving_model(model_and_folder, vllm_python) as server:
        yield server


@pytest.fixture(params=["tokens", "render", "chat"])
def gateway(request, served, tmp_path):
    """A gateway in front of the server, in each of its ways to answer."""
    with running(tmp_path / "store", served.url, answering=request.param) as found:
        assert found.gateway.answerers.name == request.param
        yield found


def openai_client(gateway, session):
    return openai.OpenAI(base_url=f"{gateway.url}/s/{session}/v1", api_key="any", max_retries=0)


def difference(gateway, model_and_folder, session, **options):
    """Return how far a session's record is from the model."""
    rollout = rollouts(gateway.store, session)
    assert sum(t.num_completion_tokens for t in rollout.turns) > 0
    return replayed_difference(model_and_folder[0], rollout, **options)


def openai_session(gateway, session, num_turns):
    """Play turns with tools; return the parsed answers."""
    messages, answers = [dict(USER)], []
    with openai_client(gateway, session) as client:
        for turn in range(num_turns):
            completion = client.chat.completions.create(
                model="tiny", messages=messages, tools=[LOOK], max_tokens=30, seed=turn
            )
            answers.append(completion)
            message = completion.choices[0].message
            messages.append(message)
            for call in message.tool_calls or ():
                result = {"role": "tool", "tool_call_id": call.id, "content": "a wall"}
                messages.append(result)
            if not message.tool_calls:
                messages.append({"role": "user", "content": f"Go on, {turn}."})
    return answers


def test_turns_with_tools_are_recorded_as_they_were_sampled(gateway, model_and_folder):
    answers = openai_session(gateway, "s", num_turns=10)
    nodes = gateway.turns()
    assert len(nodes) == len(answers) == 10
    for index, completion in enumerate(answers):
        record, message = kept(gateway, index), completion.choices[0].message
        assert completion.id == f"chatcmpl-{record.call_id}"
        assert (message.content or "") == record.text
        calls = [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()]
        assert calls == record.calls
        assert completion.usage.prompt_tokens == record.num_prompt_tokens
        assert completion.usage.completion_tokens == record.num_completion_tokens
    num_calls = [len(a.choices[0].message.tool_calls or ()) for a in answers]
    assert max(num_calls) > 1, "no parallel calls were sampled"
    assert [n.tokens.parent for n in nodes] == [None, *range(9)]
    # Qwen3 is given its history anew with every user message, and bytes that are no text change.
    assert {str(n.tokens.branch) for n in nodes} <= {"None", "retokenized"}
    if gateway.gateway.answerers.name == "tokens":
        assert all(
            n.tokens.branch is None for n, num in zip(nodes[1:], num_calls, strict=False) if num
        )
    assert difference(gateway, model_and_folder, "s") <= TOLERANCE


def test_an_anthropic_session_is_recorded_as_it_was_sampled(gateway, model_and_folder):
    messages = [dict(USER)]
    base = f"{gateway.url}/s/s"
    with anthropic.Anthropic(base_url=base, api_key="any", max_retries=0) as client:
        for turn in range(6):
            with client.messages.stream(
                model="tiny", max_tokens=30, system="Be.", messages=messages, tools=[LOOK_BLOCK]
            ) as stream:
                message = stream.get_final_message()
            record = kept(gateway, turn)
            assert "".join(b.text for b in message.content if b.type == "text") == record.text
            messages.append({"role": "assistant", "content": message.content or "-"})
            asked = [b for b in message.content if b.type == "tool_use"]
            assert [b.id for b in asked] == [call_id for call_id, _, _ in record.calls]
            results = [
                {"type": "tool_result", "tool_use_id": b.id, "content": "a wall"} for b in asked
            ]
            messages.append({"role": "user", "content": results or f"Go on, {turn}."})
        counted = client.messages.count_tokens(
            model="tiny", system="Be.", messages=messages[:-2], tools=[LOOK_BLOCK]
        )
    assert counted.input_tokens == kept(gateway, 5).num_prompt_tokens
    assert difference(gateway, model_and_folder, "s") <= TOLERANCE


ONE_OR_TWO = {
    "type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"],
    "additionalProperties": False,
}  # fmt: skip
LEAP = {"type": "function", "function": {"name": "leap", "parameters": ONE_OR_TWO}}
NAMED = {"type": "function", "function": {"name": "leap"}}
CONSTRAINED = [
    ({"tool_choice": "required", "tools": [LEAP, LOOK]}, "tool_choice"),
    ({"tool_choice": NAMED, "tools": [LEAP, LOOK]}, "tool_choice"),
    (
        {
            "response_format": {
                "type": "json_schema", "json_schema": {"name": "n", "schema": ONE_OR_TWO},
            }
        },
        "json_schema",
    ),
]  # fmt: skip


@pytest.mark.parametrize("gateway", ["tokens"], indirect=True)
def test_constrained_answers_keep_to_it_and_are_known_as_such(gateway, model_and_folder):
    messages = [dict(USER)]
    with openai_client(gateway, "s") as client:
        for seed, (options, _) in enumerate(CONSTRAINED):
            message = (
                client.chat.completions.create(
                    model="tiny", messages=messages, max_tokens=400, seed=seed, **options
                )
                .choices[0]
                .message
            )
            said = [call.function.arguments for call in message.tool_calls or ()]
            assert all(isinstance(json.loads(text), dict) for text in said or [message.content])
            assert bool(said) == ("tools" in options)
            if "tools" in options and options["tool_choice"] == NAMED:
                assert {call.function.name for call in message.tool_calls} == {"leap"}
                assert json.loads(said[0])["x"] in (1, 2)
        client.chat.completions.create(model="tiny", messages=messages, max_tokens=20, seed=1)
    turns = gateway.turns()
    kinds = [turn.constraint.partition(":")[0] for turn in turns]
    assert kinds == [*(kind for _, kind in CONSTRAINED), ""]
    decode = gateway.gateway.answerers.tokenizer.decode
    has_tools = ["leap" in decode(gateway.prompt(i)) for i in range(len(turns))]
    assert has_tools == [True, True, False, False]
    # What is trained is what the model alone samples.
    assert difference(gateway, model_and_folder, "s") <= TOLERANCE
    rollout = rollouts(gateway.store, "s")
    num_trained = sum(row.num_trained for row in rollout_rows(rollout))
    assert num_trained == turns[-1].num_completion_tokens
    unmarked = [msgspec.structs.replace(turn, sampling={}) for turn in rollout.turns]
    unmarked_rollout = dataclasses.replace(rollout, turns=unmarked)
    apart = replayed_difference(model_and_folder[0], unmarked_rollout)  # 8 nats
    assert apart > 1.0


def test_choices_completions_and_calls_at_once(gateway, model_and_folder):
    with openai_client(gateway, "n") as client:
        several = client.chat.completions.create(
            model="tiny", messages=[USER], n=2, max_tokens=20, temperature=0.7, logprobs=True
        )
    nodes = gateway.store.turns("n")
    assert [len(n.tokens.prompt_ids) > 0 for n in nodes] == [True, False]
    for choice, node in zip(several.choices, nodes, strict=True):
        shown = [entry.logprob for entry in choice.logprobs.content]
        assert shown == pytest.approx(list(node.tokens.policy_logprobs), abs=1e-6)
    assert difference(gateway, model_and_folder, "n", temperature=0.7) <= TOLERANCE
    with openai_client(gateway, "c") as client:
        client.completions.create(model="tiny", prompt="Once", max_tokens=20)
        client.completions.create(model="tiny", prompt=[72, 105], max_tokens=20)
        list(client.completions.create(model="tiny", prompt="And", max_tokens=20, stream=True))

        def say(number):
            said = {"role": "user", "content": f"{number}?"}
            return client.chat.completions.create(model="tiny", messages=[said], max_tokens=20).id

        with ThreadPoolExecutor(12) as pool:
            told = list(pool.map(say, range(12)))
    nodes = gateway.store.turns("c")
    assert len(nodes) == 15
    assert {f"chatcmpl-{n.call_id}" for n in nodes[3:]} == set(told)
    assert difference(gateway, model_and_folder, "c") <= TOLERANCE


def processes(served):
    """Return the process that answers for a server and the one that samples, below it."""
    command, found = ["-m", "vllm.entrypoints.openai.api_server"], {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            arguments = (process / "cmdline").read_text().split("\0")
            if arguments[1:3] == command and str(served.port) in arguments:
                found["server"] = int(process.name)
            elif arguments[0].startswith("VLLM::EngineCore"):
                parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
                found[parent] = int(process.name)
    return found["server"], found[found["server"]]


def cpu_s(process):
    """Return how long a process has computed."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def frozen_in_the_middle(served, ask):
    """Ask in a thread, and stop the server's sampling, once it has begun, while a block runs."""
    _, engine = processes(served)
    answers = []
    asked = threading.Thread(target=lambda: answers.append(ask()))
    idle_s = cpu_s(engine)
    asked.start()
    while asked.is_alive() and cpu_s(engine) < idle_s + 0.1:  # of a second or more for all tokens
        time.sleep(0.005)
    os.kill(engine, signal.SIGSTOP)
    try:
        time.sleep(0.5)
        assert asked.is_alive(), [getattr(a, "text", a) for a in answers]
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine, signal.SIGCONT)
        asked.join(timeout=300)


def set_version(served, version):
    """Tell the server which weights it has."""
    body = {"new_version": version}
    answer = httpx.post(f"{served.url}/update_weight_version", json=body, timeout=300)
    answer.raise_for_status()


def test_the_weights_behind_every_token_are_recorded(gateway, served):
    is_told_by_server = gateway.gateway.answerers.name != "chat"
    set_version(served, "7")
    gateway.owner("POST", "/control/resume", version=7)
    gateway.say("hi", max_tokens=5)
    later = threading.Thread(target=set_version, args=(served, "8"))
    with frozen_in_the_middle(
        served, lambda: gateway.say("go on", max_tokens=3800, min_tokens=3800)
    ):
        later.start()
        time.sleep(0.5)  # it waits for the server
    later.join()
    gateway.owner("POST", "/control/resume", version=8)
    gateway.say("at last", max_tokens=5)
    first, middle, last = [n.tokens.version_spans for n in gateway.turns()]
    assert [span.version for span in (*first, *last)] == [7, 8]
    ends = [(span.start, span.end) for span in middle]
    assert ends[0][0] == 0 and ends[-1][1] == len(gateway.turns()[1].tokens.completion_ids)
    if is_told_by_server:
        assert [span.version for span in middle] == [7, 8]
        assert middle[0].end == middle[1].start


def test_a_server_that_is_killed_in_the_middle_costs_no_call(served, model_and_folder, tmp_path):
    options = {"answering": "tokens", "max_wait_s": 600}
    with running(tmp_path / "store", served.url, **options) as gateway:
        first = openai_session(gateway, "s", num_turns=2)
        answers = []
        with openai_client(gateway, "s") as client:
            asked = {"model": "tiny", "prompt": "Once", "max_tokens": 4000, "timeout": 600}
            asked["extra_body"] = {"ignore_eos": True}
            with frozen_in_the_middle(
                served, lambda: answers.append(client.completions.create(**asked))
            ):
                os.kill(processes(served)[0], signal.SIGKILL)
                served.restart()
        (answer,) = answers
        nodes = gateway.turns()
        ids = [a.id.rpartition("-")[2] for a in (*first, answer)]
        assert [n.call_id for n in nodes] == ids
        assert answer.usage.completion_tokens == len(nodes[-1].tokens.completion_ids) == 4000
        assert gateway.gateway.pool.upstreams[0].num_failures > 0
        assert difference(gateway, model_and_folder, "s") <= TOLERANCE


def warm_up(server):
    """Have a server sample once: its first answer takes longer to begin."""
    asked = {"model": "tiny", "prompt": "Once", "max_tokens": 8}
    httpx.post(f"{server.url}/v1/completions", json=asked, timeout=300).raise_for_status()


def num_generated(server):
    """Return how many tokens a server says to have sampled."""
    lines = httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    return sum(float(x.split()[-1]) for x in lines if x.startswith("vllm:generation_tokens_total"))


def test_a_killed_servers_answer_goes_on_at_another_and_no_token_is_lost(
    served, model_and_folder, vllm_python, tmp_path
):
    with (
        serving_model(model_and_folder, vllm_python) as doomed,
        running(tmp_path / "s", doomed.url, served.url, answering="tokens") as gateway,
    ):
        warm_up(doomed)
        at_start = num_generated(doomed)
        before = at_start + num_generated(served)
        events = []

        def ask():
            with openai_client(gateway, "s") as client:
                asked = {"model": "tiny", "prompt": "Once", "stream": True, "max_tokens": 3000}
                asked["extra_body"] = {"ignore_eos": True}
                events.extend(client.completions.create(**asked))

        with frozen_in_the_middle(doomed, ask):
            at_kill = num_generated(doomed)
            for process in processes(doomed):
                os.kill(process, signal.SIGKILL)
        (turn,) = gateway.turns()
        assert len(turn.tokens.completion_ids) == 3000
        assert at_start < at_kill < before + 3000
        sampled = at_kill + num_generated(served) - before
        assert sampled == 3000, "tokens were sampled twice"
        assert "".join(e.choices[0].text for e in events) == turn.answer["content"]
        assert difference(gateway, model_and_folder, "s") <= TOLERANCE


def test_the_server_tells_what_it_is_and_another_tokenizer_is_refused(
    served, model_and_folder, tmp_path
):
    with running(tmp_path / "s", served.url, answering="tokens") as gateway:
        (told,) = gateway.client.get("/control/status").json()["upstreams"]
        assert told["identity"] == {
            "model": "reference",
            "tokenizer": "checked",
            "chat template": "reference",
            "weights": "reference",
        }
    folder = tmp_path / "swapped"
    shutil.copytree(model_and_folder[1], folder)
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    words = data["model"]["vocab"]
    words["A"], words["B"] = words["B"], words["A"]
    path.write_text(json.dumps(data))
    config = GatewayConfig(
        upstreams=(served.url,), auth="none", answering="tokens", tokenizer=str(folder)
    )
    with (
        RolloutStore.open(tmp_path / "t") as store,
        pytest.raises(UsageError, match="tokenizer: "),
    ):
        asyncio.run(Gateway(config, store).open())

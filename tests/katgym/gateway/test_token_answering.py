"""Answers from token ids: prompts that go on from recorded ids, answers that are read here.

Not here: the same with a real vLLM (`test_gateway_vllm.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator

import pytest

pytest.importorskip("transformers", reason="needs the extra 'vllm'")
pytest.importorskip("renderers", reason="needs the extra 'vllm'")

from byte_tokenizer import byte_tokenizer
from tokenizers import processors
from transformers import Qwen3Config

from katgym.errors import UsageError
from katgym.gateway.config import GatewayConfig
from katgym.gateway.gateway import Gateway
from katgym.policies.base import BranchReason
from katgym.policies.expert_routes import read_routes
from katgym.rollout_store import RolloutStore, rollouts

from .scripted_server import ScriptedServer, logprob
from .served_gateway import USER, Running, running

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
GENERATE = "/inference/v1/generate"
ROUTES: dict[str, set[str]] = {"completions": set(), "generate": {GENERATE}}
"""Which routes a server lists."""
BOTH = pytest.mark.parametrize("rendering", ROUTES, indirect=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A directory with a tokenizer of bytes in ChatML and a model's config."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(folder)
    Qwen3Config(vocab_size=len(tokenizer)).save_pretrained(folder)
    return folder, tokenizer


def options(tiny):
    return {"answering": "tokens", "tokenizer": str(tiny[0]), "model": "tiny"}


@pytest.fixture(scope="module")
def rendered(
    tiny, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[ScriptedServer, Running]]]:
    """For each route that takes token ids a server and the gateway that renders for it."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name, routes in ROUTES.items():
            server = stack.enter_context(ScriptedServer())
            server.routes = routes
            folder = tmp_path_factory.mktemp(name) / "store"
            gateway = stack.enter_context(running(folder, server.url, **options(tiny)))
            found[name] = server, gateway
        yield found


@pytest.fixture
def rendering(
    rendered: dict[str, tuple[ScriptedServer, Running]],
    request: pytest.FixtureRequest,
    session: str,
) -> tuple[ScriptedServer, Running]:
    """The server with the generate route, unless a test is about `BOTH`, and its gateway."""
    name = getattr(request, "param", "generate")
    server, gateway = rendered[name]
    server.reset()
    server.routes = ROUTES[name]
    return server, gateway.of(session)


@pytest.fixture
def server(rendering: tuple[ScriptedServer, Running]) -> ScriptedServer:
    return rendering[0]


@pytest.fixture
def gateway(rendering: tuple[ScriptedServer, Running]) -> Running:
    return rendering[1]


def posted(server, index=-1):
    """Return path, prompt ids and sampling parameters of a request to the server."""
    path, body = server.requests[index]
    if path == GENERATE:
        return path, body["token_ids"], body["sampling_params"]
    return path, body["prompt"], body


def answer_ids(tokenizer, text):
    return tokenizer.encode(text + "<|im_end|>")


@BOTH
def test_a_conversation_goes_on_from_the_recorded_ids(gateway, server, tiny):
    tokenizer = tiny[1]
    # Two ids for one letter, as no tokenizer would write it: text alone would not bring them back.
    odd = [*tokenizer.encode("\u00e4")[:1], *answer_ids(tokenizer, "one")]
    server.given = [odd, answer_ids(tokenizer, "two")]
    first = gateway.chat(USER).json()["choices"][0]["message"]
    gateway.chat(USER, first, {"role": "user", "content": "more"})
    assert server.num_calls == 2
    (path, first_prompt, _), (_, second_prompt, _) = posted(server, 0), posted(server, 1)
    assert (path == GENERATE) == bool(server.routes)
    assert tokenizer.decode(first_prompt).endswith(
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert second_prompt[: len(first_prompt) + len(odd)] == first_prompt + odd
    added = tokenizer.decode(second_prompt[len(first_prompt) + len(odd) :])
    assert added == "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    nodes = gateway.turns()
    assert (nodes[1].tokens.parent, nodes[1].tokens.branch) == (0, None)
    assert gateway.prompt(1) == second_prompt
    expected = [logprob(len(first_prompt) + i, t) for i, t in enumerate(odd)]
    assert list(nodes[0].tokens.policy_logprobs) == expected


@BOTH
def test_versions_come_from_the_server_where_it_tells_them(server, tiny, tmp_path):
    def told(gateway):
        spans = gateway.turns()[0].tokens.version_spans
        (turn,) = rollouts(gateway.store, gateway.session).turns
        assert turn.tokens.version_spans == tuple(spans)
        return [(span.version, span.start, span.end) for span in spans]

    server.given = [answer_ids(tiny[1], text) for text in ("abc", "", "abc")]
    with running(tmp_path / "store", server.url, **options(tiny)) as gateway:
        gateway.move(2)
        gateway.chat(USER)
        assert told(gateway) == ([(3, 0, 2), (4, 2, 4)] if server.routes else [(2, 0, 4)])
        # The server's first weights sampled the first half of one token: they are not kept.
        short = gateway.of("short")
        short.chat(USER)
        assert told(short) == [(4 if server.routes else 2, 0, 1)]
        # Versions of an adapter are not those of the weights below it.
        adapter = gateway.of("adapter")
        gateway.move(2, model="mine@v2-0")
        adapter.chat(USER)
        assert told(adapter) == [(2, 0, 4)]
        assert server.requests[-1][1]["model"] == "mine@v2-0"


@BOTH
def test_weights_whose_sync_failed_answer_nothing(gateway, server, tiny):
    server.versions = ("3", "unverified")
    answer = gateway.chat(USER)
    if not server.routes:  # this route does not tell
        assert answer.status_code == 200
        return
    assert answer.status_code == 502
    assert "weights whose sync failed" in answer.json()["error"]["message"]
    assert gateway.turns() == []


def test_tool_calls_are_read_from_what_was_sampled(gateway, server, tiny):
    text = (
        'On it.<tool_call>\n{"name": "look", "arguments": {"x": 1}}\n</tool_call>'
        '<tool_call>\n{"name": "look", "arguments": {"x": 2}}\n</tool_call>'
    )
    server.given = [answer_ids(tiny[1], text), answer_ids(tiny[1], "seen")]
    choice = gateway.chat(USER, tools=[TOOL]).json()["choices"][0]
    calls = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert [json.loads(c["function"]["arguments"])["x"] for c in calls] == [1, 2]
    assert len({c["id"] for c in calls}) == 2
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in calls]
    gateway.chat(USER, choice["message"], *results, tools=[TOOL])
    assert gateway.turns()[1].tokens.branch is None
    assert "look" in tiny[1].decode(posted(server, 0)[1])


TWO_CALLS = "".join(
    f'<tool_call>\n{{"name": "look", "arguments": {{"x": {x}}}}}\n</tool_call>' for x in (1, 2)
)


@pytest.mark.parametrize("before", ["", "so", "after"])
def test_swapped_results_go_on_from_the_recorded_ids(gateway, server, tiny, before):
    tokenizer = tiny[1]
    server.given = [answer_ids(tokenizer, text) for text in (TWO_CALLS, "seen", "done")]
    tools = [{"name": "look", "input_schema": {"type": "object"}}]

    def ask(*messages):
        body = {"model": "x", "max_tokens": 400, "tools": tools, "messages": messages}
        return gateway.post("v1/messages", json=body).json()["content"]

    asked = [USER, {"role": "assistant", "content": ask(USER)}]
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": f"r{block['input']['x']}"}
        for block in reversed(asked[1]["content"])
    ]
    said = [{"type": "text", "text": before}] if before else []
    parts = [*results, *said] if before == "after" else [*said, *results]
    asked.append({"role": "user", "content": parts})
    asked.append({"role": "assistant", "content": ask(*asked)})
    ask(*asked, USER)
    turns = gateway.turns()
    assert [(t.tokens.parent, t.tokens.branch) for t in turns] == [
        (None, None),
        (0, None),
        (1, None),
    ]
    assert [gateway.prompt(i) for i in range(3)] == [posted(server, i)[1] for i in range(3)]
    added = tokenizer.decode(turns[1].tokens.prompt_ids)
    places = [added.index(text) for text in ("r1", "r2")]
    assert places == sorted(places) and (not before or before in added)
    assert before != "so" or added.index("so") < places[0]


@pytest.mark.parametrize("arguments", ["null", "", " ", "{}", None])
def test_a_call_of_the_history_without_arguments_is_rendered_as_a_call(
    gateway, server, tiny, arguments
):
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    gateway.chat(USER, said, {"role": "tool", "tool_call_id": "c", "content": "x"}, tools=[TOOL])
    text = tiny[1].decode(posted(server)[1])
    assert '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>' in text


def test_a_call_that_is_no_json_is_served_as_sampled_and_noted(gateway, server, tiny):
    text = '<tool_call>\n{"name": "look", "arguments": {broken}\n</tool_call>'
    server.given = [answer_ids(tiny[1], text)]
    message = gateway.chat(USER, tools=[TOOL]).json()["choices"][0]["message"]
    assert "{broken}" in json.dumps(message)
    (failed,) = gateway.failed_calls()
    assert (failed.kind, failed.status) == ("invalid_tool_call", 200)
    assert len(gateway.turns()) == 1


PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}}}
LOOK, GO = (
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
    for name in ("look", "go")
)
CALLED = '<tool_call>\n{"name": "look", "arguments": {"x": 1}}\n</tool_call>'


def before_arguments(gateway, server, tiny, **options):
    """Return the texts that a forced call's grammar has before arguments, and the turn."""
    server.given = [answer_ids(tiny[1], CALLED)]
    choice = gateway.chat(USER, tools=[LOOK, GO], **options).json()["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'
    path, prompt, params = posted(server)
    assert path != "/v1/chat/completions" and '"go"' in tiny[1].decode(prompt)
    form = json.loads(params["structured_outputs"]["structural_tag"])["format"]
    *parts, last = form["elements"]
    assert last == {"type": "const_string", "value": "}\n</tool_call>"}
    found = []
    for part in parts:
        grammar = part.get("content", part)
        for one in grammar["elements"] if grammar["type"] == "or" else [grammar]:
            text, arguments = one["elements"]
            assert arguments == {"type": "json_schema", "json_schema": PARAMETERS}
            found.append(text["value"])
    return found, gateway.turns()[-1]


def test_a_tool_that_must_be_called_is_a_grammar_of_the_models_format(gateway, server, tiny):
    texts, turn = before_arguments(gateway, server, tiny, tool_choice="required")
    calls = [f'<tool_call>\n{{"name": "{name}", "arguments": ' for name in ("look", "go")]
    assert texts == [*calls, *("}\n</tool_call>\n" + call for call in calls)]
    kind, _, digest = turn.constraint.partition(":")
    assert (kind, len(digest)) == ("tool_choice", 12)
    assert turn.sampling["tool_choice"] == "required"
    answer = {"role": "tool", "tool_call_id": turn.answer["tool_calls"][0]["id"], "content": "ok"}
    gateway.chat(USER, turn.answer, answer, tools=[LOOK, GO])
    free = gateway.turns()[1]
    assert (free.tokens.branch, free.constraint) == (None, "")


def test_a_named_tool_is_called_once(gateway, server, tiny):
    choice = {"type": "function", "function": {"name": "look"}}
    for options in ({}, {"parallel_tool_calls": False}):
        asked = {"gateway": gateway, "server": server, "tiny": tiny, **options}
        texts, turn = before_arguments(**asked, tool_choice=choice)
        assert texts == ['<tool_call>\n{"name": "look", "arguments": ']
        _, other = before_arguments(**asked, tool_choice="required")
        assert turn.constraint.startswith("tool_choice:") and other.constraint != turn.constraint


SCHEMA = {"type": "object", "required": ["a"]}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


@BOTH
def test_a_constraint_goes_out_with_the_tokens_and_is_kept(gateway, server, tiny, subtests):
    for number, (options, asked, kind) in enumerate(
        [
            ({"response_format": FORM}, {"json": SCHEMA}, "json_schema"),
            ({"response_format": {"type": "json_object"}}, {"json_object": True}, "json_object"),
            ({"structured_outputs": {"regex": "{.*}"}}, {"regex": "{.*}"}, "regex"),
            ({"guided_choice": ["{}", "{1}"]}, {"choice": ["{}", "{1}"]}, "choice"),
            ({"response_format": {"type": "text"}}, None, ""),
            ({"logit_bias": {"5": 3}}, None, "logit_bias"),
            ({"min_p": 0.0, "frequency_penalty": 0.0}, None, ""),
        ]
    ):
        with subtests.test(options=options):
            server.given = [answer_ids(tiny[1], "{}")]
            session = gateway.of(f"{gateway.session}-{number}")
            assert session.chat(USER, **options).status_code == 200
            route, _, params = posted(server)
            assert route != "/v1/chat/completions"
            assert params.get("structured_outputs") == asked
            (turn,) = session.turns()
            assert turn.constraint.partition(":")[0] == kind
            (path,) = rollouts(session.store, session.session).trajectories()
            assert any(path.loss_mask) == (not kind)


def test_an_answer_that_breaks_its_constraint_is_an_error_and_not_kept(gateway, server, tiny):
    for options in ({"response_format": FORM}, {"tools": [LOOK], "tool_choice": "required"}):
        server.given = [answer_ids(tiny[1], "no JSON")]
        answer = gateway.chat(USER, **options)
        assert answer.status_code == 502
        assert "did not keep to the call's constraint" in answer.json()["error"]["message"]
    assert gateway.turns() == []


def test_a_schema_that_is_none_is_the_agents_mistake(gateway, server):
    broken = {"type": "json_schema", "json_schema": {"name": "n"}}
    answer = gateway.chat(USER, response_format=broken)
    assert answer.status_code == 400
    assert "json_schema.schema is an object" in answer.json()["error"]["message"]


def test_what_the_servers_template_reads_is_asked_of_its_chat_route(gateway, server):
    gateway.chat(USER, chat_template_kwargs={"enable_thinking": False})
    path, body = server.requests[-1]
    assert (path, body["chat_template_kwargs"]) == (
        "/v1/chat/completions", {"enable_thinking": False},
    )  # fmt: skip
    assert gateway.turns()[0].constraint == ""


def test_stop_strings_end_the_text_and_stay_in_the_ids(gateway, server, tiny):
    ids = tiny[1].encode("keep STOP")
    server.given = [ids]
    choice = gateway.chat(USER, stop=["STOP"]).json()["choices"][0]
    assert choice["message"]["content"] == "keep "
    assert list(gateway.turns()[0].tokens.completion_ids) == ids
    assert posted(server)[2]["stop"] == ["STOP"]
    server.given = [ids]
    body = {"model": "x", "max_tokens": 50, "messages": [USER], "stop_sequences": ["STOP"]}
    answer = gateway.of(f"{gateway.session}-2").post("v1/messages", json=body).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "STOP")


def test_a_stop_string_is_in_the_text_where_it_is_asked_for(gateway, server, tiny):
    asked = {"stop": ["STOP"], "include_stop_str_in_output": True}
    server.given = [tiny[1].encode("keep STOP"), answer_ids(tiny[1], "on")]
    message = gateway.chat(USER, **asked).json()["choices"][0]["message"]
    assert message["content"] == "keep STOP"
    assert posted(server)[2]["include_stop_str_in_output"] is True
    assert gateway.chat(USER, message, USER, **asked).status_code == 200
    assert (gateway.turns()[1].tokens.parent, gateway.turns()[1].tokens.branch) == (0, None)
    server.given = [tiny[1].encode("a STOP")]
    body = {"model": "x", "prompt": "once", "stream": True, **asked}
    events = gateway.post("v1/completions", json=body).text.split("data: ")[1:-1]
    assert "".join(json.loads(e)["choices"][0]["text"] for e in events) == "a STOP"


@BOTH
def test_sampling_goes_out_as_it_was_asked_for(gateway, server, tiny):
    options = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "min_p": 0.1, "max_tokens": 20}
    options |= {"stop": ["zzz"]}
    server.given = [answer_ids(tiny[1], "a"), answer_ids(tiny[1], "b")]
    answer = gateway.chat(USER, **options, n=2).json()
    assert [c["message"]["content"] for c in answer["choices"]][:1] == ["a"]
    _, _, params = posted(server)
    assert {k: params[k] for k in options} == options
    assert params["n"] == 2


def test_a_prompt_that_leaves_no_room_is_refused_and_budgets_count(gateway, server):
    server.given = []
    long = gateway.say("x" * 4100)
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    limited = gateway.of(f"{gateway.session}-limited")
    gateway.owner("POST", "/sessions", id=limited.session, max_tokens=3)
    limited.say("hi", max_tokens=50)
    assert posted(server)[2]["max_tokens"] == 3


def test_plain_completions_are_encoded_here(gateway, server, tiny):
    server.given = [tiny[1].encode(" a time")]
    body = {"model": "x", "prompt": "once", "max_tokens": 9, "logprobs": 0}
    choice = gateway.post("v1/completions", json=body).json()["choices"][0]
    assert choice["text"] == " a time"
    assert choice["logprobs"]["text_offset"][:3] == [0, 1, 2]
    assert posted(server)[1] == tiny[1].encode("once")


@pytest.fixture(scope="module")
def with_bos(tiny, tmp_path_factory):
    """The same with a tokenizer that begins texts with a BOS."""
    folder = tmp_path_factory.mktemp("bos")
    tokenizer = byte_tokenizer(["<s>"])
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.convert_tokens_to_ids("<s>"))]
    )
    tokenizer.save_pretrained(folder)
    Qwen3Config(vocab_size=len(tokenizer)).save_pretrained(folder)
    return folder, tokenizer


def test_a_prompt_of_text_gets_special_tokens_unless_it_has_them(own_server, tmp_path, with_bos):
    own_server.routes = {GENERATE}
    (bos,) = with_bos[1].encode("<s>", add_special_tokens=False)
    with running(tmp_path / "store", own_server.url, **options(with_bos)) as gateway:
        body = {"model": "x", "prompt": "<s>once"}
        for more, num in (({}, 2), ({"add_special_tokens": False}, 1), ({}, 2)):
            gateway.post("v1/completions", json={**body, **more})
            ids = posted(own_server)[1]
            assert ids == [bos] * num + with_bos[1].encode("once", add_special_tokens=False)
            assert gateway.prompt(len(gateway.turns()) - 1) == ids


@pytest.mark.parametrize("is_chat", [True, False])
def test_log_probabilities_tell_a_tokens_own_bytes(gateway, server, tiny, is_chat):
    text = "\u00e4 \U0001f600."
    ids = answer_ids(tiny[1], text)
    server.given = [ids, ids]
    body = {"model": "x", "prompt": "once", "max_tokens": 20, "logprobs": 0}
    if not is_chat:
        shown = gateway.post("v1/completions", json=body).json()["choices"][0]["logprobs"]
        assert shown["text_offset"] == [0, 0, 1, 2, 2, 2, 2, 3, 4]
        assert shown["tokens"] == [*"\ufffd\ufffd \ufffd\ufffd\ufffd\ufffd.", "<|im_end|>"]
        return
    content = gateway.chat(USER, logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert [e["bytes"] for e in content] == [*([b] for b in text.encode()), list(b"<|im_end|>")]
    assert [e["logprob"] for e in content] == list(gateway.turns()[0].tokens.policy_logprobs)


def test_tokens_are_counted_here(gateway, server, tiny):
    body = {"model": "x", "messages": [USER]}
    num = gateway.post("v1/messages/count_tokens", json=body).json()["input_tokens"]
    gateway.chat(USER)
    assert num == len(posted(server)[1])


def test_history_that_was_changed_is_a_branch(gateway, server, tiny):
    server.given = [answer_ids(tiny[1], t) for t in ("one", "two", "three")]
    first = gateway.chat(USER).json()["choices"][0]["message"]
    gateway.chat(USER, first, USER)
    gateway.chat(USER, {"role": "assistant", "content": "changed"}, USER)
    node = gateway.turns()[2]
    assert node.tokens.branch is BranchReason.REWRITE
    assert gateway.prompt(2) == posted(server)[1]


def test_what_is_asked_for_in_vain_is_told(server, tmp_path):
    for number, (options, what) in enumerate(
        [
            ({"answering": "render"}, "--enable-scale-out"),
            ({"answering": "tokens", "tokenizer": "/nowhere/at/all"}, "cannot be loaded"),
        ]
    ):
        config = GatewayConfig(upstreams=(server.url,), auth="none", **options)
        with (
            RolloutStore.open(tmp_path / f"{number}") as store,
            pytest.raises(UsageError, match=what),
        ):
            asyncio.run(open_gateway(config, store))


async def open_gateway(config, store):
    await Gateway(config, store).open()


def test_an_adapter_has_the_limits_and_the_format_of_its_base(own_server, tmp_path, tiny):
    base = {"id": "base", "root": str(tiny[0]), "max_model_len": 77}
    adapter = {"id": "tiny", "root": str(tmp_path / "adapter"), "parent": "base"}
    own_server.cards = [base, adapter]
    with running(tmp_path / "s", own_server.url, answering="auto", model="tiny") as gateway:
        assert gateway.gateway.answerers.name == "tokens"
        refused = gateway.say("x" * 100)
        assert refused.status_code == 400
        assert "the maximum context length is 77" in refused.json()["error"]["message"]


def test_a_model_that_is_not_known_here_is_rendered_by_its_server(own_server, tmp_path):
    with running(tmp_path / "a", own_server.url, answering="auto") as gateway:
        assert gateway.gateway.answerers.name == "chat"
    own_server.routes = {GENERATE, "/v1/chat/completions/render"}
    with running(tmp_path / "b", own_server.url, answering="auto") as gateway:
        assert gateway.gateway.answerers.name == "render"


def places_of(turns):
    """Return the first expert of each token that a turn keeps, which is the token's place."""
    return [read_routes(turn.tokens.routes)[:, 0, 0].tolist() for turn in turns]


@BOTH
def test_experts_are_kept_with_the_tokens_that_they_ran(gateway, server):
    server.tells_experts = True
    answer = gateway.chat(USER).json()["choices"][0]["message"]
    gateway.chat(USER, answer, {"role": "user", "content": "more"})
    turns = gateway.turns()
    total = [len(turn.tokens.prompt_ids) + len(turn.tokens.completion_ids) for turn in turns]
    first, second = places_of(turns)
    assert first == list(range(total[0] - 1))
    assert second == list(range(total[0] - 1, sum(total) - 1))
    starts = [posted(server, n)[2].get("routed_experts_prompt_start") for n in (0, 1)]
    assert starts == [None, total[0] - 1]

"""Agents that people ship, unmodified, through a gateway: what they do and what is recorded of it.

Each runs its own program against a scripted model server, and each test tells its cell of the
guide's table (`agents_table.py`). An agent starts once for several tests: a plain run with tools, a
second process that goes on, one that compacts, one with a long prompt whose first call fails, one
that is stopped, one with a picture. Not here: SDKs (`test_openai_sdk.py`, `test_anthropic_sdk.py`),
mini-swe-agent in a sandbox (`test_mini_swe_agent.py`).
"""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from .agents_table import tell
from .shipped_agents import AGENTS, ShippedAgent
from .zoo import (
    RETOLD,
    SEEN,
    SUMMARY,
    Run,
    Zoo,
    assert_prompts_are_whole,
    count_labels,
    main_turns,
    playing,
    role_of,
)

pytestmark = [
    pytest.mark.agents,
    pytest.mark.skipif(
        not os.environ.get("KATGYM_AGENTS"), reason="KATGYM_AGENTS is unset: `.ci/agents` prints it"
    ),
]
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module", params=AGENTS, ids=lambda agent: agent.name)
def agent(request: pytest.FixtureRequest) -> ShippedAgent:
    found: ShippedAgent = request.param
    if found.package.startswith("pypi:") and not Path(os.environ["KATGYM_AGENTS"], "venv").exists():
        pytest.skip("there was no Python that the agents of PyPI run on")
    tell(found.name, "version", found.version())
    tell(found.name, "API", found.dialect)
    return found


@pytest.fixture(scope="module")
def zoo(agent: ShippedAgent, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    options = {"max_retries": 0, "max_wait_s": 0.01}
    with playing(agent, tmp_path_factory.mktemp(agent.name), **options) as found:
        yield found


@pytest.fixture(scope="module")
def worked(zoo: Zoo) -> Run:
    """Two calls side by side, a sub-agent, an end."""
    agent = zoo.agent
    script: list = []
    if agent.shell is not None and agent.read is not None:
        script.append([agent.shell("echo one; exit 3"), agent.read("/no/such/file")])
    if agent.delegate is not None:
        report = SEEN if agent.report is None else [agent.report(SEEN)]
        script += [[agent.delegate("look at place seven")], report]
    return zoo.run("s", "please do it", script=[*script, agent.finish("all done")])


@pytest.fixture(scope="module")
def resumed(zoo: Zoo, worked: Run) -> Run | None:
    """Another process that goes on."""
    if zoo.agent.go_on is None:
        return None
    arguments = zoo.agent.usage[0] if zoo.agent.usage else ()
    return zoo.run("s", "say more", script=["and again"], arguments=arguments, is_going_on=True)


@pytest.fixture(scope="module")
def compacted(zoo: Zoo, resumed: Run | None) -> Run | None:
    """A process for which the context has become small."""
    shell, how = zoo.agent.shell, zoo.agent.compaction
    if how is None:
        return None
    script: list = [SUMMARY] if how.has_tools else []
    if not how.is_first and shell is not None:
        commands = ("head -c 25000 /dev/zero | tr '\\0' x", "sleep 2", "sleep 1")
        script += [[shell(text)] for text in commands]
    script.append("all looked at")
    run = zoo.run(
        "s", "look further", script=script, is_going_on=True, compaction=how, side=SUMMARY
    )
    if how.is_last:
        last = zoo.run("s", "go on", script=["went on"], is_going_on=True, side=SUMMARY)
        run = Run(last.code, run.out + last.out, run.err + last.err, [*run.turns, *last.turns])
    return run


def test_it_answers(zoo: Zoo, worked: Run) -> None:
    assert worked.code == 0, worked.err
    assert "all done" in worked.out
    assert not zoo.gateway.failed_calls()
    assert_prompts_are_whole(zoo, "s")
    tell(zoo.agent.name, "answers", "yes")


def test_it_streams(zoo: Zoo, worked: Run) -> None:
    tell(zoo.agent.name, "streams", "yes" if zoo.num_streams["s"] else "no")


def test_calls_run_side_by_side_and_their_results_come_back_in_order(zoo: Zoo, worked: Run) -> None:
    if zoo.agent.shell is None:
        tell(zoo.agent.name, "parallel calls", "no")
        tell(zoo.agent.name, "tool errors", "no")
        return
    first, second = main_turns(worked.turns)[:2]
    assert first.tokens is not None and second.tokens is not None
    assert (first.tokens.branch, second.tokens.branch) in ((None, None), (None, RETOLD[1]))
    results = [m["content"] for m in second.messages if m["role"] == "tool"]
    assert len(results) == 2 and "one" in results[0]
    tell(zoo.agent.name, "parallel calls", "yes")
    is_told = any(words in results[1].lower() for words in ("error", "no such", "not "))
    tell(zoo.agent.name, "tool errors", "yes" if is_told else "no")


def test_a_sub_agent_is_a_branch_of_its_own(zoo: Zoo, worked: Run) -> None:
    if zoo.agent.delegate is None:
        tell(zoo.agent.name, "sub-agents", "no")
        return
    (seen,) = [t for t in worked.turns if role_of(t) == "sub-agent"]
    assert seen.tokens is not None and seen.tokens.branch == "sub_agent"
    assert SEEN in str(main_turns(worked.turns)[-1].messages)
    tell(zoo.agent.name, "sub-agents", "yes")


def test_a_conversation_goes_on_in_another_process(zoo: Zoo, resumed: Run | None) -> None:
    if resumed is None:
        tell(zoo.agent.name, "resume", "no")
        return
    assert resumed.code == 0, resumed.err
    assert "and again" in resumed.out
    again = main_turns(resumed.turns)[0]
    assert again.tokens is not None
    assert again.tokens.branch in (("rewrite",) if zoo.agent.rewrites_history else RETOLD)
    assert_prompts_are_whole(zoo, "s")
    tell(zoo.agent.name, "resume", "history anew" if zoo.agent.rewrites_history else "yes")


def test_the_tokens_it_tells_are_those_that_were_recorded(zoo: Zoo, resumed: Run | None) -> None:
    if zoo.agent.usage is None:
        tell(zoo.agent.name, "usage", "no")
        return
    arguments, read = zoo.agent.usage
    run = resumed or zoo.run("usage", "say it", script=["said"], arguments=arguments)
    told = read(run.out)
    whole = main_turns(zoo.turns("s") if resumed else run.turns)
    sums = [
        (sum(t.num_prompt_tokens for t in turns), sum(t.num_completion_tokens for t in turns))
        for turns in (main_turns(run.turns), whole)  # of the process, or of the conversation
    ]
    is_equal = told in sums
    tell(zoo.agent.name, "usage", "yes" if is_equal else "no" if told is None else "its own count")


def test_a_compacted_conversation_begins_a_branch(zoo: Zoo, compacted: Run | None) -> None:
    if compacted is None:
        tell(zoo.agent.name, "compaction", "no")
        return
    assert compacted.code == 0, compacted.err
    roles = [role_of(turn) for turn in compacted.turns]
    assert "summary" in roles, roles
    labels = [turn.tokens.branch for turn in main_turns(compacted.turns) if turn.tokens]
    assert "compaction" in labels, labels
    assert_prompts_are_whole(zoo, "s")
    tell(zoo.agent.name, "compaction", "yes")


def test_every_turn_has_the_label_that_the_script_knows(
    zoo: Zoo, worked: Run, resumed: Run | None, compacted: Run | None
) -> None:
    num, wrong = count_labels(zoo.turns("s"), rewrites_history=zoo.agent.rewrites_history)
    print(f"{zoo.agent.name}: {num - len(wrong)} of {num} labels")
    assert not wrong
    tell(zoo.agent.name, "labels", "right")


def test_a_long_prompt_is_recorded_whole_though_the_server_failed_once(zoo: Zoo) -> None:
    words = " ".join(f"word{number}" for number in range(9_000))
    zoo.play([])
    zoo.server.fault = "status 500"
    work = zoo.home / "long"
    try:
        with zoo.agent.start(zoo.url("long"), zoo.home, work, words) as process:
            wait_until(lambda: _failed(zoo, "long"), "a failed call")
            zoo.play([zoo.agent.finish("read it")])
            zoo.server.fault = ""
            run = zoo.wait(process, "long")
    finally:
        zoo.server.fault = ""
    assert run.code == 0, run.err
    assert "read it" in run.out
    assert any(words in m["content"] for turn in main_turns(run.turns) for m in turn.messages)
    tell(zoo.agent.name, "retry after 500", "yes")
    tell(zoo.agent.name, "long prompt", "yes")


def test_an_agent_that_is_stopped_leaves_a_session_that_goes_on(zoo: Zoo) -> None:
    zoo.play(["never heard"])
    num_before = len(zoo.server.requests)
    zoo.server.is_held = True
    try:
        with zoo.agent.start(
            zoo.url("stopped"), zoo.home, zoo.home / "stopped", "say it"
        ) as process:
            wait_until(lambda: len(zoo.server.requests) > num_before, "a call")
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(300)
            except Exception:
                os.killpg(process.pid, signal.SIGKILL)
                raise
    finally:
        zoo.server.is_held = False
    assert zoo.gateway.of("stopped").say("and on", model="tiny").status_code == 200
    tell(zoo.agent.name, "abort", "yes")


def test_a_picture_is_refused_aloud(zoo: Zoo) -> None:
    agent, picture = zoo.agent, zoo.home / "picture/dot.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_bytes(PIXEL)
    if agent.image is None and agent.read is None:
        tell(agent.name, "image", "no")
        return
    shown = agent.image(picture) if agent.image is not None else ()
    script = [] if agent.image is not None or agent.read is None else [[agent.read(str(picture))]]
    run = zoo.run(
        "picture", "what is it?", script=[*script, agent.finish("a dot")], arguments=shown
    )
    refused = [call for call in _failed(zoo, "picture") if "image" in str(call)]
    print(run.code, run.out[-300:], run.err[-300:], refused)
    is_told = "image" in run.out + run.err
    found = ("refused, told" if is_told else "refused") if refused else "no"
    tell(agent.name, "image", found)


def _failed(zoo: Zoo, session: str) -> list:
    ids = {s.session_id for s in zoo.gateway.store.sessions()}
    return list(zoo.gateway.store.failed_calls(session)) if session in ids else []

"""One shipped agent at play: its home, a scripted model server, a gateway, and what they recorded.

What the script had each call answer tells which turns are the agent's own, a sub-agent's, a
summary, or asked aside; `count_labels` compares their labels with that. Not here: what is asked of
an agent (`test_shipped_agents.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from katgym import Turn

from ..scripted_server import ScriptedServer, prompt_ids
from ..served_gateway import Running, running, whole_prompt
from .shipped_agents import Call, Compaction, ShippedAgent

TITLE = "A title for it all"
SEEN = "seen it at the place"
SUMMARY = "So far the agent has looked around at place seven and found nothing there but a bell."
RETOLD = (None, "retokenized")
"""Labels of a turn that goes on: a prompt may write calls otherwise than they were sampled."""


@dataclass
class Run:
    """What one process of an agent said, and the turns that it added."""

    code: int
    out: str
    err: str
    turns: list[Turn]


@dataclass
class Zoo:
    """An agent, what serves it, and where it is at home."""

    agent: ShippedAgent
    server: ScriptedServer
    gateway: Running
    home: Path
    num_streams: Counter[str] = field(default_factory=Counter)
    """Answers that came as events, by path."""

    def url(self, session: str) -> str:
        return f"{self.gateway.url}/s/{session}"

    def turns(self, session: str) -> list[Turn]:
        ids = {s.session_id for s in self.gateway.store.sessions()}
        return self.gateway.store.turns(session) if session in ids else []

    def run(
        self,
        session: str,
        prompt: str,
        *,
        script: Sequence[str | Sequence[Call]],
        arguments: Sequence[str] = (),
        is_going_on: bool = False,
        compaction: Compaction | None = None,
        side: str = TITLE,
    ) -> Run:
        """Run the agent to its end, in the session's own folder."""
        self.play(script, side)
        num_before = len(self.turns(session))
        with self.agent.start(
            self.url(session), self.home, self.home / session, prompt,
            arguments=arguments, is_going_on=is_going_on, compaction=compaction,
        ) as process:  # fmt: skip
            return self.wait(process, session, num_before)

    def wait(self, process: subprocess.Popen[str], session: str, num_before: int = 0) -> Run:
        """Return what a process has said when it has ended."""
        try:
            process.wait(timeout=1800)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        out, err = ((self.home / f"{session}.{kind}").read_text() for kind in ("out", "err"))
        return Run(process.returncode, out, err, self.turns(session)[num_before:])

    def play(self, script: Sequence[str | Sequence[Call]], side: str = TITLE) -> None:
        """Set what the model answers next; side: where an agent that has tools offers none."""
        self.server.script = [step if isinstance(step, str) else _calls(step) for step in script]
        self.server.side_answer = None if self.agent.shell is None else side


class _Watched:
    """An application whose streams are counted."""

    def __init__(self, application: Any, num_streams: Counter[str]) -> None:
        self._application, self._num_streams = application, num_streams

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def watch(message: Any) -> None:
            kinds = [v for k, v in message.get("headers", ()) if k.lower() == b"content-type"]
            if message["type"] == "http.response.start" and b"event-stream" in b"".join(kinds):
                self._num_streams[scope["path"].split("/")[2]] += 1
            await send(message)

        await self._application(scope, receive, watch)


@contextlib.contextmanager
def playing(agent: ShippedAgent, folder: Path, **options: Any) -> Iterator[Zoo]:
    """Serve an agent, which starts in a home of its own."""
    num_streams: Counter[str] = Counter()
    around: Callable[[Any], Any] = lambda application: _Watched(application, num_streams)  # noqa: E731
    with (
        ScriptedServer(max_model_len=1_000_000) as server,
        running(folder / "store", server.url, around=around, **options) as gateway,
    ):
        try:
            yield Zoo(agent, server, gateway, folder / "home", num_streams)
        finally:
            _end_leftovers(folder / "home")


def _end_leftovers(home: Path) -> None:
    """End what an agent left running in its home, a daemon say."""
    mark = f"\0HOME={home}\0".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in b"\0" + (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def _calls(made: Sequence[Call]) -> list[tuple[str, str]]:
    """Return tool calls as agents write them again: JSON without blanks."""
    return [(name, json.dumps(given, separators=(",", ":"))) for name, given in made]


def role_of(turn: Turn) -> str:
    """Return whose turn it is, by what it was told to answer."""
    answer = turn.answer or {}
    text = answer.get("content", "")
    if SEEN in str(answer.get("tool_calls", "")):
        return "sub-agent"
    roles = {TITLE: "aside", SEEN: "sub-agent", SUMMARY: "summary"}
    return "aside" if text.startswith("echo ") else roles.get(text, "main")


def main_turns(turns: Sequence[Turn]) -> list[Turn]:
    return [turn for turn in turns if role_of(turn) == "main"]


def count_labels(turns: Sequence[Turn], *, rewrites_history: bool = False) -> tuple[int, list[str]]:
    """Return how many turns of a session there are, and which are labelled otherwise than known."""
    wrong: list[str] = []
    main: list[int] = []
    has_summary = has_resumed = False
    for index, turn in enumerate(turns):
        role, tokens = role_of(turn), turn.tokens
        assert tokens is not None
        goes_on = tokens.parent in main and tokens.branch in RETOLD
        if role == "main":
            is_right = goes_on if main else tokens.parent is None and tokens.branch is None
            if has_summary and tokens.branch == "compaction":
                is_right, has_summary = True, False
            if rewrites_history and main and not has_resumed:
                is_right = has_resumed = tokens.branch == "rewrite"
            main.append(index)
        elif role == "sub-agent":
            is_right = tokens.branch == "sub_agent"
        elif role == "summary":
            is_right = tokens.branch in (*RETOLD, "rewrite", "sub_agent")
            has_summary = True
        else:
            is_right = tokens.parent not in main or tokens.branch in ("sub_agent", "rewrite")
        if not is_right:
            said = str(turn.answer)[:80]
            wrong.append(f"{index}: {role} is {tokens.branch} off {tokens.parent}: {said}")
    return len(turns), wrong


def assert_prompts_are_whole(zoo: Zoo, session: str) -> None:
    """Compare every recorded prompt with what the model server was sent."""
    turns = zoo.turns(session)
    sent = Counter(tuple(prompt_ids(body["messages"])) for _, body in zoo.server.requests)
    for index in range(len(turns)):
        assert sent[tuple(whole_prompt(turns, index))], f"turn {index} was never asked so"

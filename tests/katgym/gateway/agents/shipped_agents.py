"""Command-line agents as they are shipped: how each is started, and what it calls.

They are packages of npm and PyPI in the folder that KATGYM_AGENTS names (`.ci/agents` installs
them, pinned). Not here: where each is told its model server (`agent_settings.py`), what they are
made to do (`test_shipped_agents.py`), what they tell of the tokens they used (`told_usage.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import agent_settings, told_usage
from .agent_settings import MODEL
from .told_usage import Usage

Call = tuple[str, dict[str, Any]]
"""Name and arguments of a tool call."""


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """How an agent is made to compact a conversation: settings for a small context."""

    env: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    """Before the prompt."""
    write: Callable[[str, Path], object] | None = None
    """Writes other settings into a home, for a gateway's session URL."""
    has_tools: bool = False
    """Whether it asks for the summary with its tools, or has none at all."""
    is_first: bool = False
    """Whether it compacts before it goes on, not when a call's result has become too long."""
    is_last: bool = False
    """Whether it compacts behind its answer, and the next process goes on from the summary."""


@dataclass(frozen=True, kw_only=True)
class ShippedAgent:
    """One agent: its command, its settings, the names of its tools, and how it is made to do more.

    What it has no way to do is None.
    """

    name: str
    package: str
    """Of npm, or `pypi:` and a name."""
    dialect: str
    """The API that it speaks."""
    command: Sequence[str]
    """With a prompt behind it and `asks`, it answers and ends."""
    asks: Sequence[str] = ()
    """Right before the prompt."""
    settings: Callable[[str, Path], Mapping[str, str]]
    """Its environment for a gateway's session URL and a home, in which files may be written."""
    go_on: Sequence[str] | None = None
    """In place of `command`, to go on with the last conversation."""
    shell: Callable[[str], Call] | None = None
    """The tool call that runs a command."""
    read: Callable[[str], Call] | None = None
    """The tool call that reads a file."""
    finish: Callable[[str], str | list[Call]] = str
    """What a model answers to end with a text."""
    delegate: Callable[[str], Call] | None = None
    """The tool call that gives a sub-agent something to do, and waits for it."""
    report: Callable[[str], Call] | None = None
    """The tool call by which a sub-agent answers; without, its text is its answer."""
    image: Callable[[Path], Sequence[str]] | None = None
    """Arguments that show it a picture; without, it is told to read it."""
    compaction: Compaction | None = None
    usage: tuple[Sequence[str], Callable[[str], Usage | None]] | None = None
    """Arguments with which it tells its tokens, and what reads them out of its output."""
    rewrites_history: bool = False
    """Whether a conversation that goes on is written anew."""

    def start(
        self,
        url: str,
        home: Path,
        work: Path,
        prompt: str,
        *,
        arguments: Sequence[str] = (),
        is_going_on: bool = False,
        compaction: Compaction | None = None,
    ) -> subprocess.Popen[str]:
        """Start it in the folder `work`, as a group of processes of its own.

        Its output goes to the files `work` with `.out` and `.err`: a pipe that nobody reads would
        stop it.
        """
        work.mkdir(parents=True, exist_ok=True)
        folder = Path(os.environ["KATGYM_AGENTS"])
        is_python = self.package.startswith("pypi:")
        bin_folder = folder / ("venv/bin" if is_python else "node_modules/.bin")
        command, *more = (self.go_on or ()) if is_going_on else self.command
        environ = {"PATH": os.environ["PATH"], "HOME": str(home), **self.settings(url, home)}
        if compaction is not None:
            environ |= compaction.env
            arguments = (*arguments, *compaction.arguments)
            if compaction.write is not None:
                compaction.write(url, home)
        with work.with_suffix(".out").open("w") as out, work.with_suffix(".err").open("w") as err:
            return subprocess.Popen(
                [str(bin_folder / command), *more, *arguments, *self.asks, prompt],
                cwd=work,
                env=environ,
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True,
                start_new_session=True,
            )  # fmt: skip

    def version(self) -> str:
        """Return the version that is installed."""
        folder = Path(os.environ["KATGYM_AGENTS"])
        kind, _, name = self.package.rpartition(":")
        if kind:
            stem = name.replace("-", "_")
            (found,) = folder.glob(f"venv/lib/*/site-packages/{stem}-*.dist-info")
            return found.name.removesuffix(".dist-info").rpartition("-")[2]
        package = json.loads((folder / "node_modules" / name / "package.json").read_text())
        return str(package["version"])


_CLAUDE = ("claude", "--dangerously-skip-permissions")
_CODEX = ("codex", "exec")
_CODEX_OPTIONS = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
_QWEN = ("qwen", "--yolo")
_PI = ("pi", "--provider", "katgym", "--model", MODEL)
_COPILOT = ("copilot", "--allow-all")
_AIDER = (
    "aider", "--yes-always", "--no-check-update", "--analytics-disable", "--no-git", "--no-pretty",
    "--no-show-model-warnings", "--no-show-release-notes", "--model", f"openai/{MODEL}",
)  # fmt: skip
_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo"


def _bash(text: str) -> Call:
    return "bash", {"command": text}


def _bash_with_reason(text: str) -> Call:
    return "bash", {"command": text, "description": "run"}


AGENTS = (
    ShippedAgent(
        name="claude-code",
        package="@anthropic-ai/claude-code",
        dialect="Anthropic messages",
        command=_CLAUDE,
        go_on=(*_CLAUDE, "--continue"),
        asks=("-p",),
        settings=agent_settings.claude,
        shell=lambda text: ("Bash", {"command": text, "description": "run"}),
        read=lambda path: ("Read", {"file_path": path}),
        delegate=lambda text: (
            "Agent",
            {
                "description": "look",
                "prompt": text,
                "subagent_type": "general-purpose",
                "run_in_background": False,
            },
        ),
        compaction=Compaction(
            env={
                "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "20000",
                "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "10",
            },
            has_tools=True,
            is_first=True,
        ),
        usage=(("--output-format", "json"), told_usage.of_claude),
    ),
    ShippedAgent(
        name="codex",
        package="@openai/codex",
        dialect="OpenAI responses",
        command=(*_CODEX, *_CODEX_OPTIONS),
        go_on=(*_CODEX, "resume", "--last", *_CODEX_OPTIONS),
        settings=agent_settings.codex,
        shell=lambda text: ("exec_command", {"cmd": text}),
        read=lambda path: ("exec_command", {"cmd": f"cat {path}"}),
        image=lambda path: ("-i", str(path), "--"),
        compaction=Compaction(arguments=("-c", "model_auto_compact_token_limit=30000")),
        usage=(("--json",), told_usage.of_codex),
    ),
    ShippedAgent(
        name="gemini-cli",
        package="@google/gemini-cli",
        dialect="Google generateContent",
        command=("gemini", "--yolo"),
        go_on=("gemini", "--yolo", "--resume", "latest"),
        asks=("-p",),
        settings=agent_settings.gemini,
        shell=lambda text: ("run_shell_command", {"command": text, "description": "run"}),
        read=lambda path: ("read_file", {"file_path": path}),
        delegate=lambda text: ("invoke_agent", {"agent_name": "generalist", "prompt": text}),
        report=lambda text: ("complete_task", {"result": {"response": text}}),
    ),
    ShippedAgent(
        name="opencode",
        package="opencode-ai",
        dialect="OpenAI chat",
        command=("opencode", "run"),
        go_on=("opencode", "run", "--continue"),
        settings=agent_settings.opencode,
        shell=_bash_with_reason,
        read=lambda path: ("read", {"filePath": path}),
        delegate=lambda text: (
            "task",
            {"description": "look", "prompt": text, "subagent_type": "general"},
        ),
        image=lambda path: ("-f", str(path), "--"),
        compaction=Compaction(
            write=lambda url, home: agent_settings.opencode(url, home, context=32_000)
        ),
        usage=(("--format", "json"), told_usage.of_opencode),
    ),
    ShippedAgent(
        name="qwen-code",
        package="@qwen-code/qwen-code",
        dialect="OpenAI chat",
        command=_QWEN,
        go_on=(*_QWEN, "--continue"),
        asks=("-p",),
        settings=agent_settings.qwen,
        shell=lambda text: (
            "run_shell_command",
            {"command": text, "description": "run", "is_background": False},
        ),
        read=lambda path: ("read_file", {"file_path": path}),
        delegate=lambda text: (
            "agent",
            {"description": "look", "prompt": text, "subagent_type": "general-purpose"},
        ),
        compaction=Compaction(
            write=lambda url, home: agent_settings.write_file(
                home / ".qwen/settings.json",
                json.dumps({"model": {"chatCompression": {"contextPercentageThreshold": 0.1}}}),
            ),
            is_first=True,
        ),
        usage=(("--output-format", "json"), told_usage.of_qwen),
    ),
    ShippedAgent(
        name="pi",
        package="@mariozechner/pi-coding-agent",
        dialect="OpenAI chat",
        command=(*_PI, "-p"),
        go_on=(*_PI, "--continue", "-p"),
        settings=agent_settings.pi,
        shell=_bash,
        read=lambda path: ("read", {"path": path}),
        image=lambda path: (f"@{path}",),
        compaction=Compaction(
            write=lambda url, home: agent_settings.pi(url, home, context=16_000), is_last=True
        ),
        usage=(("--mode", "json"), told_usage.of_pi),
    ),
    ShippedAgent(
        name="copilot",
        package="@github/copilot",
        dialect="OpenAI chat",
        command=_COPILOT,
        go_on=(*_COPILOT, "--continue"),
        asks=("-p",),
        settings=agent_settings.copilot,
        shell=_bash_with_reason,
        read=lambda path: ("view", {"path": path}),
        delegate=lambda text: (
            "task",
            {
                "description": "look",
                "prompt": text,
                "agent_type": "general-purpose",
                "name": "looker",
                "mode": "sync",
            },
        ),
        image=lambda path: ("--attachment", str(path)),
        compaction=Compaction(
            env={
                "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": "20000",
                "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS": "1000",
            },
        ),
    ),
    ShippedAgent(
        name="cline",
        package="@cline/cli-linux-x64",
        dialect="OpenAI chat",
        command=("cline",),
        settings=agent_settings.cline,
        shell=lambda text: ("run_commands", {"commands": [text]}),
        read=lambda path: ("read_files", {"files": [{"path": path}]}),
        delegate=lambda text: ("spawn_agent", {"systemPrompt": "You look.", "task": text}),
        usage=(("--json",), told_usage.of_cline),
    ),
    ShippedAgent(
        name="mini-swe-agent",
        package="pypi:mini-swe-agent",
        dialect="OpenAI chat",
        command=("mini", "--yolo", "--exit-immediately", "--model", f"openai/{MODEL}"),
        asks=("--task",),
        settings=agent_settings.mini,
        shell=_bash,
        read=lambda path: _bash(f"cat {path}"),
        finish=lambda text: [_bash(f"{_SUBMIT} {text}")],
    ),
    ShippedAgent(
        name="aider",
        package="pypi:aider-chat",
        dialect="OpenAI chat",
        command=_AIDER,
        go_on=(*_AIDER, "--restore-chat-history"),
        asks=("--message",),
        settings=agent_settings.litellm,
        compaction=Compaction(
            arguments=("--max-chat-history-tokens", "10"), has_tools=True, is_first=True
        ),
        usage=((), told_usage.of_aider),
        rewrites_history=True,
    ),
)

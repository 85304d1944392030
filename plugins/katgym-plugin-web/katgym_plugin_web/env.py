"""The env: a page is written, tried out, and judged by a play that its writer does not see.

Not here: tasks (`families/`), the browser (`playing.py`), verdicts (`judging.py`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

import katgym
from katgym.environment.messages import Action, Message
from katgym.environment.tool_output import readable_text, shorten
from katgym_plugin_web.families import FAMILIES
from katgym_plugin_web.family import RULES
from katgym_plugin_web.judging import find_faults
from katgym_plugin_web.playing import Record, play
from katgym_plugin_web.tab import FRAME_MS

MAX_PAGE = 60_000
MAX_OUTPUT = 6_000
MAX_WAIT_MS = 10_000
LABELLED = ("button", "textbox", "checkbox", "combobox", "spinbutton", "radio", "slider", "image")
"""Roles of elements that have to have a name."""


class WrittenPages(katgym.Env):
    """Pages that are written by the policy.

    family: one of `FAMILIES`, "" for all of them in turn. size: tasks of a split; None is usual.
    """

    default_max_turns = 20
    is_deterministic = False  # a shape's edge, or a tenth of a pixel in `state()`, may differ
    system_prompt: ClassVar[str] = (
        "Write one web page with the tools. It is judged when you send a message without a call."
    )

    def __init__(
        self, *, family: str = "", size: int | None = None, sandbox: str = "local", **kwargs: Any
    ) -> None:
        """Prepare an env; sandbox: the backend in which browsers run."""
        super().__init__(**kwargs)
        if family:
            katgym.errors.check_name("family", family, FAMILIES)
        self.families = [family] if family else list(FAMILIES)
        self.size = size
        self.sandbox_name = sandbox
        self.html = ""
        self.faults: list[str] | None = None
        self.record = Record()

    def load_tasks(self, split: str) -> katgym.TaskSet:
        def make_task(rng: np.random.Generator, index: int) -> katgym.Task:
            family = FAMILIES[self.families[index % len(self.families)]]
            parameters = family.draw(rng)
            return katgym.Task(
                task_id="",
                prompt=family.prompt(parameters) + "\n" + RULES,
                data={"family": family.name, "parameters": parameters},
            )

        return katgym.ProceduralTaskSet(make_task, size=self.size, split=split, splits=self.splits)

    async def setup(self) -> None:
        """Begin with no page."""
        self.html, self.faults, self.record = "", None, Record()
        self.play_seed = int(self.np_random.integers(2**31))

    @katgym.tool
    def write_page(self, html: str) -> str:
        """Replace the page.

        Args:
            html: The whole file.
        """
        if len(html) > MAX_PAGE:
            raise katgym.ToolError(f"a page has at most {MAX_PAGE} characters, not {len(html)}")
        self.html = html.encode("utf-8", "replace").decode()
        return f"{len(html)} characters were written"

    @katgym.tool
    def edit_page(self, old: str, new: str) -> str:
        """Replace a part of the page.

        Args:
            old: What occurs in it exactly once.
            new: What stands there afterwards.
        """
        if not old or self.html.count(old) != 1:
            raise katgym.ToolError(f"old occurs {self.html.count(old) if old else 0} times")
        return self.write_page(self.html.replace(old, new))

    @katgym.tool
    def read_page(self) -> str:
        """Return the page as it is."""
        return shorten(self.html, MAX_PAGE) or "the page is empty"

    @katgym.tool(timeout_s=700.0)
    async def run_page(
        self, wait_ms: int = 0, role: str = "", name: str = "", text: str = ""
    ) -> str:
        """Load the page in a browser; use one element, if named; wait; tell what is there then.

        Args:
            wait_ms: How long to wait, up to 10,000 ms of the page's own time.
            role: Role of the element to click on, as `button`.
            name: Its name.
            text: What to write into it after the click.
        """
        if not 0 <= wait_ms <= MAX_WAIT_MS:
            raise katgym.ToolError(f"wait_ms is from 0 to {MAX_WAIT_MS}, got {wait_ms}")
        steps: list[list[Any]] = [["wait", max(wait_ms, FRAME_MS)], ["look"]]
        if role:
            steps.insert(0, ["type", role, name, text] if text else ["click", role, name])
        record = await play(self.html, steps, size=(800, 600), sandbox=self.sandbox_name)
        return shorten(readable_text(tell(record)), MAX_OUTPUT)

    @katgym.scorer()
    async def correct(self) -> bool:
        """Whether every look of the hidden play shows what it should."""
        if self.faults is None:
            self.faults = await self._judge()
            self.artifacts["faults"] = self.faults[:20]
        return not self.faults

    @katgym.scorer(weight=0.0)
    def console_errors(self) -> int:
        """How many errors the page raised or logged in the play."""
        return len(self.record.console)

    @katgym.scorer(weight=0.0)
    def unnamed_elements(self) -> int | None:
        """How many controls and pictures a screen reader finds without a name, at the last look."""
        if not self.record.looks:
            return None
        elements = self.record.looks[-1]["elements"]
        return sum(e["role"] in LABELLED and not e["name"] for e in elements)

    async def regrade(
        self, task: katgym.Task, messages: Sequence[Message], artifacts: Mapping[str, Any]
    ) -> float | None:
        """Play the page that was left once more."""
        self.task, self.messages = task, list(messages)
        self.html, self.play_seed = str(artifacts["page"]), int(artifacts["play_seed"])
        self.faults = None
        return (await self.rubric.score(self)).value

    def oracle_action(self) -> Action:
        if self.html:
            return "The page is written."
        solution = FAMILIES[self.task.data["family"]].solution(self.task.data["parameters"])
        return katgym.assistant("", [("write_page", {"html": solution})])

    def random_action(self, rng: random.Random) -> Action:
        if self.html:
            return "Done."
        colour = f"#{rng.randrange(16**6):06x}"
        html = f'<!doctype html><body style="background: {colour}"><button>Start</button>'
        return katgym.assistant("", [("write_page", {"html": html})])

    async def _judge(self) -> list[str]:
        self.artifacts = {"page": self.html, "play_seed": self.play_seed}
        if not self.html:
            return ["there is no page"]
        family = FAMILIES[self.task.data["family"]]
        rng = np.random.default_rng(self.play_seed)
        script = family.script(dict(self.task.data["parameters"]), rng)
        self.record = await play(
            self.html,
            script.steps,
            size=script.size,
            seed=self.play_seed,
            start_ms=script.start_ms,
            sandbox=self.sandbox_name,
        )
        return find_faults(script, self.record)


def tell(record: Record) -> str:
    """Return what a run shows, for the policy."""
    lines = [record.failure] if record.failure else []
    lines += [f"there is no {name}" for name in record.missing]
    lines += [f"error: {line}" for line in record.console]
    lines += [f"refused: {url}" for url in record.requests]
    for look in record.looks:
        lines.append(f"{look['at_ms']:.0f} ms after loading began")
        lines.append(f"state() = {json.dumps(look['state'])}")
        for element in look["elements"]:
            left, top, width, height = element["box"]
            words = [f"{element['role']} {element['name']!r}", f"text={element['text']!r}"]
            words += [f"{key}={element[key]!r}" for key in ("value", "checked") if element[key]]
            lines.append(" ".join([*words, f"at {left:g},{top:g} {width:g}x{height:g}"]))
    return "\n".join(lines)

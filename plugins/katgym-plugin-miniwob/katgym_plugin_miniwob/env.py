"""The env of all pages: it is shown as text, and acted on by the numbers of its elements.

Graded by the page. Not here: the browser (`browser.py`), solutions (`solutions.py`).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import katgym
from katgym.environment.messages import Action
from katgym.environment.remote_env import RemoteEnv
from katgym.plugins.upstream import package_folder
from katgym_plugin_miniwob.browser import Tab, shared_browser
from katgym_plugin_miniwob.solutions import SOLUTIONS, TEST_PAGES, Element

SCRIPT = Path(__file__).with_name("page.js")
MAX_TEXT = 1000
_idle: defaultdict[str, list[Tab]] = defaultdict(list)
_lock = threading.Lock()


def html_folder() -> Path:
    """Return where the pages are; `MissingDependencyError` says how to install them."""
    because = "Selenium, which nothing here uses"
    return package_folder("miniwob", "miniwob==1.1.0", because=because) / "html" / "miniwob"


class Pages(RemoteEnv):
    """MiniWoB++'s pages, each drawn anew by a seed.

    page: one of them, `click-button`, as the only split, `all`; "" for those with a solution here,
    each in one split. size: tasks of a split.
    """

    splits: tuple[str, ...] = ("train", "test")

    default_max_turns = 10
    system_prompt: ClassVar[str] = (
        "Do what the page asks for. Elements are named by the numbers in square brackets. The"
        " episode ends when the page has judged what was done, or with a message without a call."
    )

    def __init__(self, *, page: str = "", size: int = 1000, **kwargs: Any) -> None:
        if page:
            self.splits = ("all",)
            known = sorted(path.stem for path in html_folder().glob("*.html"))
            katgym.errors.check_name("page", page, known)
        super().__init__(**kwargs)
        self.page, self.size = page, size
        self.tab: Tab | None = None

    def load_tasks(self, split: str) -> katgym.TaskSet:
        pages = [page for page in SOLUTIONS if (page in TEST_PAGES) == (split == "test")]

        def make_task(rng: np.random.Generator, _: int) -> katgym.Task:
            page = self.page or pages[int(rng.integers(len(pages)))]
            seed = int(rng.integers(2**31))
            data = {"page": page, "seed": seed}
            return katgym.Task(task_id="", prompt=f"{page} {seed}", data=data)

        return katgym.ProceduralTaskSet(make_task, size=self.size, split=split)

    async def setup(self) -> None:
        self.raw_reward, self.is_judged = 0.0, False
        await asyncio.to_thread(self._open)

    def opening(self) -> str:
        return f"{self.query}\n\n{self._text()}"

    async def teardown(self) -> None:
        if self.tab is not None:
            with _lock:
                _idle[self.task.data["page"]].append(self.tab)
            self.tab = None

    @katgym.tool
    def click(self, element: int) -> str:
        """Click on the middle of an element.

        Args:
            element: Its number.
        """
        point = self._tab.evaluate(f"katgym.point({element})")
        self._check(point, element)
        self._tab.click(*point)
        return self._look()

    @katgym.tool
    def type_text(self, element: int, text: str) -> str:
        """Replace the text of a field.

        Args:
            element: Its number.
            text: What it holds afterwards.
        """
        if len(text) > MAX_TEXT:
            raise katgym.ToolError(f"a text is of at most {MAX_TEXT} characters here")
        self._check(self._tab.evaluate(f"katgym.clear({element})"), element)
        self._tab.call("Input.insertText", text=text)
        self._tab.evaluate(f"katgym.typed({element})")
        return self._look()

    @katgym.tool
    def select(self, element: int, option: str) -> str:
        """Choose an option of a list.

        Args:
            element: The list's number.
            option: The option's text.
        """
        self._check(self._tab.evaluate(f"katgym.choose({element}, {json.dumps(option)})"), element)
        return self._look()

    @katgym.scorer()
    def correct(self) -> bool:
        """Whether the page gives the full reward, before what it takes off for time."""
        return self.raw_reward >= 1.0

    def oracle_action(self) -> Action:
        solve = SOLUTIONS.get(self.task.data["page"])
        if solve is None:
            raise NotImplementedError(f"page {self.task.data['page']!r} has no solution here")
        return katgym.assistant("", solve(self.query, self.elements))

    @property
    def _tab(self) -> Tab:
        """The tab; a page that has judged would begin another task with the next click."""
        if self.tab is None or self.is_judged:
            raise katgym.ToolError("the page has judged what was done")
        return self.tab

    def _open(self) -> None:
        page = self.task.data["page"]
        with _lock:
            self.tab = _idle[page].pop() if _idle[page] else None
        if self.tab is None:
            url = (html_folder() / f"{page}.html").as_uri()
            self.tab = Tab(shared_browser(), url, script=SCRIPT.read_text("utf-8"))
        self.tab.evaluate(f"katgym.start({self.task.data['seed']})")
        self._look()

    def _look(self) -> str:
        """Read the page, and end the episode if it has judged."""
        found = self._tab.evaluate("katgym.settle()")
        if found["done"]:
            self.raw_reward, self.is_judged = float(found["reward"]), True
            self.finish("the page has judged")
            return "The page has judged what was done."
        seen = self._tab.evaluate("katgym.elements()")
        self.query: str = seen["query"]
        self.elements: list[Element] = seen["elements"]
        return self._text()

    def _text(self) -> str:
        return "\n".join(map(describe, self.elements))

    def _check(self, found: object, element: int) -> None:
        if not found:
            raise katgym.ToolError(f"element {element} is not there, or cannot be used so")


def describe(element: Element) -> str:
    """Return the line of one element.

    Example:
        [3] input text value='Bob' focused
    """
    words = [f"[{element['ref']}]", element["tag"]]
    words += [element["type"]] if "type" in element else []
    words += [repr(element["text"])] if element["text"] else []
    words += [f"{key}={element[key]!r}" for key in ("value", "options") if key in element]
    words += [key for key in ("checked", "focused") if element.get(key)]
    return " ".join(words)

"""Solutions of pages, for the oracle: from a page's text and elements to calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

Element = dict[str, Any]
Call = tuple[str, dict[str, Any]]
Solve = Callable[[str, Sequence[Element]], list[Call]]
QUOTED = r'"([^"]*)"'
CHOSEN = r"(?:Select |, |click )(?!nothing and)(.+?)(?=, | and click|\.$)"
"""What `Select A, B and click Submit.` names."""


def _find(elements: Sequence[Element], text: str, *tags: str) -> Element:
    """Return the first element with a text, or a value that is a label."""
    plain = text.casefold().strip()
    for element in elements:
        labels = {element["text"].casefold(), str(element.get("value", "")).casefold()}
        if plain in labels and (not tags or element["tag"] in tags):
            return element
    raise LookupError(f"no element {text!r}")


def _click(element: Element) -> Call:
    return "click", {"element": element["ref"]}


def _press_button(query: str, elements: Sequence[Element]) -> list[Call]:
    return [_click(next(e for e in elements if e["tag"] == "button"))]


def _click_all(pattern: str, *tags: str) -> Solve:
    """Click on every text that a pattern finds in the query; a dialog's "x" is called Close."""

    def solve(query: str, elements: Sequence[Element]) -> list[Call]:
        texts = re.findall(pattern, query.replace('"x"', '"Close"'))
        return [_click(_find(elements, text, *tags)) for text in texts]

    return solve


def _fields(elements: Sequence[Element]) -> list[Element]:
    types = ("text", "password")
    return [e for e in elements if e["tag"] == "textarea" or e.get("type") in types]


def _fill(elements: Sequence[Element], *texts: str) -> list[Call]:
    """Enter texts into the fields, in order, the last one into those left; press the button."""
    calls: list[Call] = []
    for number, field in enumerate(_fields(elements)):
        text = texts[min(number, len(texts) - 1)]
        calls.append(("type_text", {"element": field["ref"], "text": text}))
    return [*calls, *_press_button("", elements)]


def _enter(query: str, elements: Sequence[Element]) -> list[Call]:
    return _fill(elements, *re.findall(QUOTED, query))


def _focus(query: str, elements: Sequence[Element]) -> list[Call]:
    place = re.search(r"the (\d)", query)
    return [_click(_fields(elements)[int(place[1]) - 1 if place else 0])]


def _choose(query: str, elements: Sequence[Element]) -> list[Call]:
    option = query.removeprefix("Select ").removesuffix(" from the list and click Submit.")
    field = next(e for e in elements if e["tag"] == "select")
    chosen = ("select", {"element": field["ref"], "option": option})
    return [chosen, *_press_button(query, elements)]


def _read_table(query: str, elements: Sequence[Element]) -> list[Call]:
    (key,) = re.findall("the value of (.*) into the text field", query)
    cells = [e for e in elements if e["tag"] == "td"]
    return _fill(elements, cells[cells.index(_find(cells, key)) + 1]["text"])


def _add(query: str, elements: Sequence[Element]) -> list[Call]:
    text = "".join(e["text"] for e in elements if e["tag"] != "button").replace(" ", "")
    ((first, sign, second),) = re.findall(r"(\d+)([-+x*×])(\d+)=", text)
    left, right = int(first), int(second)
    return _fill(elements, str({"+": left + right, "-": left - right}.get(sign, left * right)))


SOLUTIONS: dict[str, Solve] = {
    "click-button": _click_all(QUOTED),
    "click-button-sequence": _click_all(r"button (\w+)"),
    "click-checkboxes": _click_all(CHOSEN, "label", "button"),
    "click-dialog": _click_all(QUOTED, "button"),
    "click-dialog-2": _click_all(QUOTED, "button"),
    "click-link": _click_all(QUOTED),
    "click-option": _click_all(CHOSEN, "label", "button"),
    "click-tab": _click_all(r"Click on (.*)\.", "a"),
    "click-test": _press_button,
    "click-test-2": _click_all(r"button (\w+)"),
    "choose-list": _choose,
    "enter-password": _enter,
    "enter-text": _enter,
    "enter-text-dynamic": _enter,
    "focus-text": _focus,
    "focus-text-2": _focus,
    "login-user": _enter,
    "read-table": _read_table,
    "simple-arithmetic": _add,
}
"""Pages and how each is solved."""
TEST_PAGES = (
    *("click-dialog-2", "click-tab", "click-test-2", "choose-list", "enter-password"),
    *("focus-text-2", "simple-arithmetic"),
)
"""Those of the test split: many pages have too few states for splits that differ in seeds."""

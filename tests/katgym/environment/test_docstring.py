"""Docstrings of every style give the description and one text per argument.

Not here: schemas (`test_tool.py`).
"""

from __future__ import annotations

import inspect

import pytest

from katgym.environment.docstring import parse_docstring

BOTH = {"x": "First, with more text.", "y": "Second: (really)."}


def google(self: object) -> None:
    """Do it.

    Of one
    or more.

    Args:
        x: First, with
            more text.

        y (dict[str, list[int]], optional): Second: (really).

    Returns:
        z: What.
    """


def google_arguments(self: object) -> None:
    """Do it.

    Of one or more.

    Arguments:
      - `x` (Callable[[int], str]) : First,
          with more text.
      - **y**: Second: (really).
    Raises:
      E: Never.
    """


def numpy(self: object) -> None:
    """
    Do it.

    Of one or more.

    Parameters
    ----------
    x : {'a', 'b'}, optional
        First, with

        more text.
    y
        Second: (really).

    Returns
    -------
    z : int
        What.
    """


def numpy_others(self: object) -> None:
    """Do it.

    Of one or more.

    Parameters
    ==========
    x: int
        First, with more text.
    *args

    Raises
    ------
    E
        Never.

    Other Parameters
    ----------------
    y : list of int
        Second: (really).
    """


def sphinx(self: object) -> None:
    r"""Do it.

    Of one or more.

    :param int x: First, with
        more text.
    :type x: int
    :param y: Second: (really).
    :param \*args:
    :returns: What.
        x: Of no argument.
    :rtype: dict[str, int]
    """


def sphinx_keywords(self: object) -> None:
    """Do it.

    Of one or more.

    :raises E: Never.
    :arg x:
        First, with more text.
    :keyword list[int] y: Second: (really).

    And something else.
    """


def epytext(self: object) -> None:
    """Do it. Of one or more.

    @param x: First, with more text.
    @type x: C{int}
    @param y: Second: (really).
    @return: What.
    """


@pytest.mark.parametrize(
    "function",
    [google, google_arguments, numpy, numpy_others, sphinx, sphinx_keywords, epytext],
    ids=lambda function: function.__name__,
)
def test_every_style_gives_the_same(function: object) -> None:
    description, texts = parse_docstring(inspect.getdoc(function) or "")
    assert description == "Do it. Of one or more."
    assert {name: text for name, text in texts.items() if name != "z"} == BOTH


def test_prose_that_looks_like_a_section_stays_prose() -> None:
    for doc in (
        "Search: all of it.",
        "Search tool ----------- Finds things.",
        "Do it. Args: x is good.",
        "It is slow: https://example.com/x: see there.",
        "Give a time: 12:30, or :param without a name.",
    ):
        assert parse_docstring(doc) == (doc, {})
    assert parse_docstring("Tool\n----\nNote\nthe case.") == ("Tool ---- Note the case.", {})
    assert parse_docstring("Args:\nx: a\n    b\ny: c") == ("", {"x": "a b", "y": "c"})
    assert parse_docstring("Do.\n\nArgs:\n\tx: a\n\nMore: b") == ("Do.", {"x": "a"})

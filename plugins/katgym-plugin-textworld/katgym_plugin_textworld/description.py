"""The text that a player reads: rooms, things and belongings, from the state of a game.

TextWorld writes its descriptions for the Inform 7 compiler, with conditions like
`[if d_0 is open]an open[otherwise]a closed[end if] door`. `Describer.expand` reads those that its
grammars use, so that no compiler is needed.
"""

from __future__ import annotations

import re

import textworld
from textworld.logic import State, Variable

_PART = re.compile(r"(\[[^\]]*\])")
_THING = re.compile(r"(some|no)thing (?:in|on) (?:the )?(.+)")
_HOLDS = re.compile(r"(.+?) (contains nothing|is empty|has something on it)")
_IS = re.compile(r"(.+?) (?:is )?(open|closed|locked)")
_LIST = re.compile(r"(is-are )?(?:a )?list of things (?:in|on) (?:the )?(.+)")


class Describer:
    """The texts of one game; `state` is passed in, for it changes."""

    def __init__(self, game: textworld.Game) -> None:
        self.game = game
        self.infos = game.infos

    def name(self, thing: Variable) -> str:
        return self.infos[thing.name].name or ""

    def room(self, state: State) -> str:
        """Return the room the player is in, with what lies on its floor."""
        at = [fact.arguments for fact in state.facts if fact.name == "at"]
        here = next(place for thing, place in at if thing.type == "P")
        described = self.expand(self.infos[here.name].desc or "", state)
        is_portable = self.game.kb.types.is_descendant_of
        lying = [thing for thing, place in at if place == here and is_portable(thing.type, ["o"])]
        floor = sorted(map(self.name, lying))
        lines = [f"-= {self.name(here).title()} =-", re.sub(r"\s+", " ", described).strip()]
        if floor:
            lines.append(f"On the floor: {', '.join(floor)}.")
        return "\n".join(lines)

    def inventory(self, state: State) -> str:
        """Return what the player carries."""
        return f"You carry {self._list('I', state)}."

    def thing(self, name: str, state: State) -> str:
        """Return the description of the thing with this name, and what is seen in or on it."""
        own = next(key for key, info in self.infos.items() if info.name == name)
        text = self.expand(self.infos[own].desc or "", state, own).strip()
        is_shut = self._has(state, "closed", own) or self._has(state, "locked", own)
        is_holder = self.game.kb.types.is_descendant_of(self.infos[own].type, ["c", "s"])
        if is_holder and not is_shut:
            text += f" You see {self._list(own, state)} there."
        return text or f"You see nothing special about the {name}."

    def expand(self, text: str, state: State, own: str = "") -> str:
        """Return a description with its conditions decided; `own` is the id of what it describes.

        Conditions do not nest: the grammars have none that do.
        """
        shown, is_on, is_decided = [], True, False
        for part in _PART.split(text):
            code = part[1:-1] if part.startswith("[") else ""
            if code.startswith(("if ", "else if ")):
                condition = code.removeprefix("else ").removeprefix("if ")
                is_else = code.startswith("else")
                is_on = not (is_else and is_decided) and self._holds(condition, state, own)
                is_decided = is_on or (is_else and is_decided)
            elif code == "otherwise":
                is_on, is_decided = not is_decided, True
            elif code == "end if":
                is_on, is_decided = True, False
            elif is_on:
                shown.append(self._say(code, state, own) if code else part)
        return "".join(shown)

    def _say(self, code: str, state: State, own: str) -> str:
        if found := _LIST.fullmatch(code):
            return ("is " if found[1] else "") + self._list(found[2], state)
        return code.replace("noun", self.infos[own].name or "it") if own else code

    def _holds(self, condition: str, state: State, own: str) -> bool:
        if " and " in condition:
            return all(self._holds(part, state, own) for part in condition.split(" and "))
        condition = condition.removeprefix("there is ").removeprefix("the ")
        if found := _THING.fullmatch(condition):
            return bool(self._content(found[2], state)) == (found[1] == "some")
        if found := _HOLDS.fullmatch(condition):
            return bool(self._content(found[1], state)) == found[2].startswith("has")
        if found := _IS.fullmatch(condition):
            return self._has(state, found[2], found[1])
        return self._has(state, condition, own) or condition == "unvisited"

    def _has(self, state: State, quality: str, thing: str) -> bool:
        return any(
            fact.name == quality and [a.name for a in fact.arguments] == [thing]
            for fact in state.facts
        )

    def _content(self, holder: str, state: State) -> list[str]:
        return sorted(
            self.name(fact.arguments[0])
            for fact in state.facts
            if fact.name in ("in", "on") and fact.arguments[1].name == holder
        )

    def _list(self, holder: str, state: State) -> str:
        return ", ".join(self._content(holder, state)) or "nothing"

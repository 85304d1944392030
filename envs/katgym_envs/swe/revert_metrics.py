"""Metrics of what an agent took back on the way: churn, rollbacks, and ending with nothing.

Not here: how the final state compares with gold (`edit_metrics.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from katgym_envs.swe.patching import line_opcodes


@dataclass(slots=True, kw_only=True)
class RevertTracker:
    """Follows the workspace's changed files over an episode and counts what was undone.

    `observe` is told the state after each turn: path -> content of every file that differs from
    the base (None: deleted), with the base content of new paths given by `base`.

    Example:
        tracker = RevertTracker(base={"a.py": b"x = 1\\n"})
        tracker.observe({"a.py": b"x = 2\\n"})      # one line deleted, one added
        tracker.observe({})                        # the same two changes undone
        tracker.churn                              # 0.5: 2 of 4 changes undid an earlier one
    """

    base: Mapping[str, bytes]
    num_edits: int = 0
    """States that differed from the one before."""
    num_line_changes: int = 0
    """Lines added + lines deleted, over all edits; blank lines are not counted."""
    num_undone: int = 0
    """Those that took back an earlier change of the episode."""
    _state: dict[str, bytes | None] = field(default_factory=dict)
    _added: dict[str, Counter[bytes]] = field(default_factory=dict)
    _deleted: dict[str, Counter[bytes]] = field(default_factory=dict)

    def observe(self, changed: Mapping[str, bytes | None]) -> None:
        """Take note of the state after a turn."""
        has_edit = False
        for path in sorted({*self._state, *changed}):
            before = self._content(self._state, path)
            after = self._content(changed, path)
            if before != after:
                has_edit = True
                added = self._added.setdefault(path, Counter())
                deleted = self._deleted.setdefault(path, Counter())
                old, new = before.splitlines(), after.splitlines()
                for tag, i1, i2, j1, j2 in line_opcodes(old, new):
                    if tag == "equal":
                        continue
                    self._change(old[i1:i2], undoes=added, enters=deleted)
                    self._change(new[j1:j2], undoes=deleted, enters=added)
        self._state = dict(changed)
        self.num_edits += has_edit

    def _content(self, state: Mapping[str, bytes | None], path: str) -> bytes:
        content = state[path] if path in state else self.base.get(path)
        return content or b""

    def _change(
        self, lines: list[bytes], *, undoes: Counter[bytes], enters: Counter[bytes]
    ) -> None:
        for line in lines:
            if not line.strip():
                continue
            self.num_line_changes += 1
            if undoes[line] > 0:
                undoes[line] -= 1
                self.num_undone += 1
            else:
                enters[line] += 1

    @property
    def churn(self) -> float | None:
        """Share of line changes that undid an earlier one (0 to 0.5); None without any change."""
        return self.num_undone / self.num_line_changes if self.num_line_changes else None

    @property
    def is_null_final(self) -> bool | None:
        """Whether the episode edited and ended where it began; None when it never edited."""
        if not self.num_edits:
            return None
        return all(
            self._content(self._state, path) == self.base.get(path, b"") for path in self._state
        )

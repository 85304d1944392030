"""Description of a row that cannot be imported.

Not here: the checks (`normalise.py`), reading files (`row_file.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from katgym.errors import UsageError


class RowError(UsageError):
    """One field of a row does not fit; `field` is "" when it is about the whole line."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}" if field else text)
        self.field = field
        self.text = text

    def __reduce__(self) -> tuple[type[RowError], tuple[str, str]]:
        return (type(self), (self.field, self.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRow:
    """A row that was refused.

    Example:
        BrokenRow(line=3, instance_id="a__b-1", field="FAIL_TO_PASS", reason="no test is listed")
    """

    line: int
    """Line of the file, from 1; in a JSON array or Parquet file the row's number, from 1."""
    instance_id: str
    """"" when the row has none."""
    field: str
    reason: str

    def __str__(self) -> str:
        name = f" ({self.instance_id})" if self.instance_id else ""
        field = f"{self.field}: " if self.field else ""
        return f"line {self.line}{name}: {field}{self.reason}"

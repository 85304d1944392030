"""Tables as text: columns where they fit, else a record a row; in a pipe a line a row.

Not here: who prints them (`console.py`), pages (`run_view`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

_GAP = 2
_LEAST_WRAPPED = 24
"""Columns of the terminal that a cell needs at least where it is wrapped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A table without lines; a `str` in it is no markup, other cells have no part in pipes.

    Example:
        TextTable(header=("env", "reward"), rows=[("katgym/Echo-v0", "1.000")], right=("reward",))
    """

    rows: Sequence[Sequence[RenderableType]]
    header: Sequence[str] = ()
    """Names of the columns; without them the table never becomes records."""
    right: Collection[str] = ()
    """Columns that hold numbers."""
    wrap: Collection[str] = ()
    """Columns whose cells may go over several lines; the last does, unless it holds numbers."""
    title: str = ""
    caption: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield Text(self.title, style="bold")
        widths = self._fit(console, options) if console.is_terminal and self.rows else None
        if not console.is_terminal:
            yield from map(Text, self._lines())
        elif widths is not None:
            yield self._columns(widths)
        elif self.rows:
            yield from self._records()
        if self.caption:
            yield Text(self.caption, style="dim italic")

    @property
    def _num_columns(self) -> int:
        return max(map(len, (self.header, *self.rows)))

    def _is_wrapped(self, place: int) -> bool:
        name = self.header[place] if self.header else ""
        is_last = place == self._num_columns - 1
        return name in self.wrap or (is_last and name not in self.right)

    def _justify(self, place: int) -> str:
        return "right" if self.header and self.header[place] in self.right else "left"

    def _lines(self) -> Iterator[str]:
        """Yield the header and each row as one line, its columns below each other."""
        shown = [[_flat(cell) for cell in row] for row in self.rows]
        shown = [list(self.header), *shown] if self.header else shown
        if not shown:
            return
        columns = range(self._num_columns)
        widths = [max(cell_len(row[i]) for row in shown if i < len(row)) for i in columns]
        for row in shown:
            cells = []
            for place, text in enumerate(row):
                blanks = " " * (widths[place] - cell_len(text))
                cells.append(blanks + text if self._justify(place) == "right" else text + blanks)
            yield (" " * _GAP).join(cells).rstrip()

    def _fit(self, console: Console, options: ConsoleOptions) -> list[int] | None:
        """Return the columns' widths; None where they have no room beside each other."""
        wide = options.update(width=1_000_000)
        least, most = [], []
        for place in range(self._num_columns):
            cells = [row[place] for row in self.rows if place < len(row)]
            width = max((console.measure(cell, options=wide).maximum for cell in cells), default=0)
            name = Text(self.header[place]) if self.header else Text("")
            measure = console.measure(name, options=wide)
            needed = min(width, _LEAST_WRAPPED) if self._is_wrapped(place) else width
            least.append(max(needed, measure.minimum))
            most.append(max(width, measure.maximum))
        spare = options.max_width - sum(least) - _GAP * (len(least) - 1)
        if spare < 0 and self.header:
            return None
        widths = list(least)
        for place in sorted(range(len(least)), key=self._is_wrapped):
            widths[place] += max(0, min(spare, most[place] - least[place]))
            spare -= widths[place] - least[place]
        return widths

    def _columns(self, widths: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False, show_header=bool(self.header), header_style="bold")
        for place, width in enumerate(widths):
            name = Text(self.header[place]) if self.header else Text("")
            is_right = self._justify(place) == "right"
            table.add_column(
                name, justify="right" if is_right else "left", width=width, overflow="fold"
            )
        for row in self.rows:
            table.add_row(*row)
        return table

    def _records(self) -> Iterator[RenderableType]:
        for index, row in enumerate(self.rows):
            if index:
                yield Text("")
            record = Table.grid(padding=(0, _GAP, 0, 0))
            record.add_column(style="bold", no_wrap=True)
            record.add_column(overflow="fold")
            for name, cell in zip(self.header, row, strict=False):
                if cell:
                    record.add_row(Text(name), cell)
            yield record


def _flat(cell: RenderableType) -> str:
    """Return a cell's text on one line; nothing for what is no text."""
    text = cell.plain if isinstance(cell, Text) else cell if isinstance(cell, str) else ""
    return "; ".join(line for line in text.splitlines() if line.strip())

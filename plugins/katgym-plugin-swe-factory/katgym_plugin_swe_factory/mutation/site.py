"""A place that an operator can change, as data.

Not here: finding it (`mutate.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class MutationSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One mutation; in the same bytes it makes the same change."""

    file: str
    operator: str
    location: str
    """Start, end and kind of the node (`Site.location`)."""
    variant: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One node of a module that one operator changes in `num_variants` ways.

    Example:
        Site(file="larder/stock.py", operator="compare", line=12, column=11, end_line=12,
             end_column=15, node_kind="ComparisonTarget", qualname="Stock.take", num_variants=2)

    Lines count from 1, columns from 0, in characters.
    """

    file: str
    operator: str
    line: int
    column: int
    end_line: int
    end_column: int
    node_kind: str
    qualname: str
    """Of the innermost class or function around it; "" at module level."""
    num_variants: int

    @property
    def location(self) -> str:
        """Return what finds the site again: start, end and kind of its node."""
        start, end = f"{self.line}:{self.column}", f"{self.end_line}:{self.end_column}"
        return f"{start}-{end} {self.node_kind}"

    def spec(self, variant: int) -> MutationSpec:
        """Return the mutation that takes one of the variants, from 0."""
        return MutationSpec(
            file=self.file, operator=self.operator, location=self.location, variant=variant
        )

    def specs(self) -> tuple[MutationSpec, ...]:
        """Return all mutations here."""
        return tuple(self.spec(variant) for variant in range(self.num_variants))

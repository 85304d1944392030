"""Cards by name: memory, bandwidth and rates, as their makers state them.

    card = find_card("h100")
    seconds = max(num_bytes / card.bytes_per_s, operations / card.half_per_s)

Not here: what a step asks of them (`fake_card.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from katgym.errors import check_name

_REACHED_BANDWIDTH, _REACHED_HALF, _REACHED_SINGLE = 3.0 / 3.35, 700 / 989.4, 50 / 67
"""Shares of the stated rates that copies and matrix products reach at best, taken of all cards. On
an H100: 3.0 TB/s, 700 T/s in bfloat16, 50 T/s in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One kind of GPU.

    Example:
        Card(title="NVIDIA H100 80GB HBM3", capability=(9, 0), num_processors=132,
             shared_bytes=232_448, memory_mib=81_559, stated_tb_per_s=3.35, stated_half_t=989.4,
             stated_single_t=67)
    """

    title: str
    """Name that its driver gives."""
    capability: tuple[int, int]
    num_processors: int
    """Streaming multiprocessors."""
    shared_bytes: int
    """Shared memory that one block may take."""
    memory_mib: int
    """As nvidia-smi shows it."""
    stated_tb_per_s: float
    """Bandwidth of its memory."""
    stated_half_t: float
    """10^12 operations a second in bfloat16, dense, added up in float32."""
    stated_single_t: float
    """The same in float32, without tensor cores."""

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes."""
        return self.memory_mib * 2**20

    @property
    def bytes_per_s(self) -> float:
        """Bytes a second that copies reach."""
        return self.stated_tb_per_s * 1e12 * _REACHED_BANDWIDTH

    @property
    def half_per_s(self) -> float:
        """Operations a second that products in bfloat16 reach."""
        return self.stated_half_t * 1e12 * _REACHED_HALF

    @property
    def single_per_s(self) -> float:
        """Operations a second that products in float32 reach."""
        return self.stated_single_t * 1e12 * _REACHED_SINGLE


CARDS = {
    "h100": Card(
        title="NVIDIA H100 80GB HBM3", capability=(9, 0), num_processors=132, shared_bytes=232_448,
        memory_mib=81_559, stated_tb_per_s=3.35, stated_half_t=989.4, stated_single_t=67,
    ),
    "h200": Card(
        title="NVIDIA H200", capability=(9, 0), num_processors=132, shared_bytes=232_448,
        memory_mib=143_771, stated_tb_per_s=4.8, stated_half_t=989.4, stated_single_t=67,
    ),
    "a100": Card(
        title="NVIDIA A100-SXM4-80GB", capability=(8, 0), num_processors=108, shared_bytes=166_912,
        memory_mib=81_920, stated_tb_per_s=2.039, stated_half_t=312, stated_single_t=19.5,
    ),
    "rtx4090": Card(
        title="NVIDIA GeForce RTX 4090", capability=(8, 9), num_processors=128,
        shared_bytes=101_376, memory_mib=24_564, stated_tb_per_s=1.008, stated_half_t=165.2,
        stated_single_t=82.6,
    ),
    "l40s": Card(
        title="NVIDIA L40S", capability=(8, 9), num_processors=142, shared_bytes=101_376,
        memory_mib=46_068, stated_tb_per_s=0.864, stated_half_t=362.05, stated_single_t=91.6,
    ),
}  # fmt: skip
"""Name -> card. Rates: NVIDIA's data sheets of H100 SXM, H200 SXM, A100 SXM 80 GB, L40S, and its
white paper of the Ada architecture for the RTX 4090; shared memory and capability: the CUDA C++
programming guide, table of technical specifications by compute capability."""


def find_card(name: str) -> Card:
    """Return a card by its name; `UnknownNameError` with the nearest one if there is none."""
    check_name("card", name, CARDS)
    return CARDS[name]


def name_of(title: str) -> str | None:
    """Return the name of a card that a driver gives a title; None for one that is not known."""
    return next((name for name, card in CARDS.items() if card.title == title), None)

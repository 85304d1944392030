"""`katgym doctor --model`: what of a model's training fits a card, from steps without a card.

Not here: the command's options (`katgym.cli.environments.doctor_command`).
"""

from __future__ import annotations

import argparse

from katgym import console
from katgym.policies.model_source import check_model
from katgym_trainer.fake_card.cards import find_card
from katgym_trainer.fake_card.model_fit import ModelFit, fit_model

_GIB = 2**30


def print_fits(args: argparse.Namespace) -> int:
    """Print what fits; 0 if something does, 1 if nothing does."""
    card = find_card(args.card)
    check_model(args.model)
    told = f"{args.model}, {args.tokens:,} tokens a card, on {args.cards} x {card.title}"
    with console.stderr.status(f"counting steps of {told}"):
        fits = [*fit_model(args.model, args.tokens, card=args.card, num_cards=args.cards)]
    if args.json:
        console.print_json(fits)
    else:
        console.stdout.print(
            f"{told}, {card.memory_bytes / _GIB:.1f} GiB each; bfloat16, AdamW", soft_wrap=True
        )
        _print(fits)
    return int(not any(fit.has_room for fit in fits))


def _print(fits: list[ModelFit]) -> None:
    is_several = any(fit.received_bytes for fit in fits)
    header: tuple[str, ...] = (
        "fits",
        "trained",
        "peak GiB",
        "least ms",
        "GB moved",
        "launches",
        "waits",
    )
    if is_several:
        header += ("GB from others",)
    console.print_rows(
        [
            (
                console.yes_or_no(fit.has_room),
                fit.setting,
                f"{fit.peak_bytes / _GIB:.1f}",
                f"{1e3 * fit.least_s:,.0f}",
                f"{fit.bytes_moved / 1e9:,.0f}",
                f"{fit.launches:,}",
                str(fit.num_waits),
                *([f"{fit.received_bytes / 1e9:,.1f}"] if is_several else []),
            )
            for fit in fits
        ],
        header=header,
        right=header[2:],
    )

"""Verify a run that somebody else made: grade, step and test it again.

RUN is the folder of an evaluation. Its hash chain, plan, tokens and figures are computed anew,
every episode is played again from its recorded answers, and where the policy is at hand it is asked
again, or its weights are tested against the tokens. Exit code 0: verified. 1: refuted, something
does not hold. 2: nothing speaks against it, but something could not be verified. What programs of
the run printed otherwise here is named as not compared. What a verification cannot see:
docs/guides/verify.md. `katgym view` shows the verdict beside the run.

example:
  katgym verify runs/smollm2
  katgym verify runs/smollm2 --set root=3f2a... --set rescore_tokens=20000
  katgym verify runs/qwen --set weights=hf:models/qwen3 --json
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from katgym import console
from katgym.cli.options import ConfigOptions, add_option
from katgym.evaluation.verification.marks import keep_mark
from katgym.evaluation.verification.report import Verdict, report_table
from katgym.evaluation.verification.verify import VerifyConfig, verify_run

OPTIONS = ConfigOptions(VerifyConfig)
EXIT_CODES = {Verdict.VERIFIED: 0, Verdict.REFUTED: 1, Verdict.INCOMPLETE: 2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("run_folder", metavar="RUN", type=Path, help="a run's folder")
    OPTIONS.add(parser)
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print what was found; the exit code is the verdict."""
    report = asyncio.run(verify_run(args.run_folder, OPTIONS.config(args)))
    keep_mark(report)
    if args.json:
        console.print_json(report.to_json())
    else:
        console.stdout.print(report_table(report))
        left = f", not compared: {text}" if (text := report.not_compared_text) else ""
        console.stdout.print(
            f"\n{report.folder}: {report.verdict} ({report.grounds}){left}\nroot {report.root}",
            soft_wrap=True,
        )
    return EXIT_CODES[report.verdict]

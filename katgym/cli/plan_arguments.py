"""The options that say what is played and how, of every command that plays a plan.

Not here: where the rollouts go (each command's own).
"""

from __future__ import annotations

import argparse

from katgym.evaluation.plan import EvalConfig
from katgym.limits import Limits
from katgym.policies.base import Sampling


def add_plan_arguments(parser: argparse.ArgumentParser, *, split: str) -> None:
    """Add envs, policy, tasks, sampling and limits; split: the default one."""
    parser.add_argument("envs", nargs="+", metavar="ENV", help="id, with ?name=value&... if needed")
    parser.add_argument(
        "--policy", required=True, help="oracle, noop, random, smollm2, hf:MODEL, ..."
    )
    parser.add_argument("--tasks", type=int, default=100, help="tasks per env (100)")
    parser.add_argument("--group-size", type=int, default=1, help="attempts per task (1)")
    parser.add_argument("--seed", type=int, default=0, help="chooses tasks, seeds everything (0)")
    parser.add_argument("--split", default=split, help=f"train, validation or test ({split})")
    parser.add_argument("--concurrency", type=int, default=16, help="rollouts at a time (16)")
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--temperature", type=float, default=1.0, help="0 is greedy (1.0)")
    sampling.add_argument("--top-p", type=float, default=1.0)
    sampling.add_argument("--top-k", type=int, default=0, help="0 keeps all")
    sampling.add_argument("--max-tokens", type=int, default=512, help="per turn (512)")
    limits = parser.add_argument_group("limits of one episode")
    limits.add_argument("--max-turns", type=int, help="the env's own by default")
    limits.add_argument("--max-episode-tokens", type=int, help="sampled tokens over all turns")
    limits.add_argument("--timeout", type=float, metavar="SECONDS", help="wall time")
    limits.add_argument("--retries", type=int, default=1, help="after infrastructure faults (1)")


def config_of(args: argparse.Namespace) -> EvalConfig:
    """Return what the options say; `UsageError` for values that are not allowed."""
    return EvalConfig(
        envs=tuple(args.envs),
        policy=args.policy,
        num_tasks=args.tasks,
        group_size=args.group_size,
        seed=args.seed,
        split=args.split,
        sampling=Sampling(
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            max_tokens=args.max_tokens,
        ),
        limits=Limits(
            max_turns=args.max_turns,
            max_tokens=args.max_episode_tokens,
            timeout_s=args.timeout,
        ),
        max_concurrency=args.concurrency,
        max_retries=args.retries,
    )

"""pass@k and pass^k: does one of k attempts succeed, do all of them.

Both are unbiased estimates from n >= k attempts at a task. Fewer attempts than k are an error: the
familiar fallback 1 - (1 - c/n)**k is biased.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from katgym.errors import UsageError


def pass_at_k(num_attempts: int, num_successes: int, k: int) -> float:
    """Return the chance that at least one of k attempts, drawn from n with c successes, succeeds.

    pass@k = 1 - C(n - c, k) / C(n, k)        (Chen et al. 2021, arXiv:2107.03374, eq. 1)
    """
    _check(num_attempts, num_successes, k)
    return 1.0 - math.comb(num_attempts - num_successes, k) / math.comb(num_attempts, k)


def pass_hat_k(num_attempts: int, num_successes: int, k: int) -> float:
    """Return the chance that all of k attempts, drawn from n with c successes, succeed.

    pass^k = C(c, k) / C(n, k)        (Yao et al. 2024, tau-bench, arXiv:2406.12045)
    """
    _check(num_attempts, num_successes, k)
    return math.comb(num_successes, k) / math.comb(num_attempts, k)


def powers_of_two(limit: int) -> list[int]:
    """Return 1, 2, 4, ... up to `limit`, the k worth reporting for that many attempts."""
    return [1 << exponent for exponent in range(limit.bit_length())] if limit > 0 else []


def mean_pass_k(
    counts: Iterable[tuple[int, int]],
) -> tuple[dict[int, float], dict[int, float]]:
    """Return (pass@k, pass^k) for k = 1, 2, 4, ..., averaged over tasks, each weighing the same.

    `counts` holds (num_attempts, num_successes) per task; k goes up to the smallest num_attempts,
    so that every task enters every number.
    """
    tasks: Sequence[tuple[int, int]] = list(counts)
    ks = powers_of_two(min((n for n, _ in tasks), default=0))
    at = {k: math.fsum(pass_at_k(n, c, k) for n, c in tasks) / len(tasks) for k in ks}
    hat = {k: math.fsum(pass_hat_k(n, c, k) for n, c in tasks) / len(tasks) for k in ks}
    return at, hat


def _check(num_attempts: int, num_successes: int, k: int) -> None:
    if k < 1:
        raise UsageError(f"k is at least 1, got {k!r}")
    if not 0 <= num_successes <= num_attempts:
        raise UsageError(
            f"num_successes is between 0 and num_attempts={num_attempts!r}, got {num_successes!r}"
        )
    if num_attempts < k:
        raise UsageError(
            f"k={k!r} needs at least {k} attempts of the task, got {num_attempts!r}."
            f" Run {k - num_attempts} more, or ask for a smaller k."
        )

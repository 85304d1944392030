"""Whether given weights made the recorded tokens: a statistical test on a sample of them.

1. log-probs     mean |recorded - computed| over a rollout is at most `Tolerance.logprob`.
2. likelihood    e = mean over q of prod_t q(token_t) / p(token_t), where p is the distribution of
                 these weights and q is p sharpened, flattened, or uniform. If the tokens were drawn
                 from p, E[e] <= 1 whatever came before each, so P(e >= 1/a) <= a (Markov).
3. draws         the random numbers follow from the run's seed and the attempt. Each has to fall
                 into its token's interval, widened by `Tolerance.draw`. Rounding may miss with
                 probability `Tolerance.miss`; of n draws k miss with probability at most
                 exp(-n KL(k/n || miss)) (Chernoff). At temperature 0 no token may be likelier.

2 and 3 are asked of each rollout and of all together, each at the level that makes all of them
refuse tokens which these weights did draw with probability at most `ALPHA`. 1 has no such level:
its tolerances are what engines differ by (docs/guides/verify.md). 3 finds what 2 cannot: the best
of many draws from the right weights.

Not here: the computation (`policies/hf/token_scoring.py`), choosing rollouts (`verify.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from katgym.policies.token_scores import TokenScores, Tolerance

ALPHA = 1e-6
"""Probability to refuse a run whose tokens these weights did draw, over all of its tests."""
FLOAT32 = Tolerance(logprob=1e-3, draw=1e-3, miss=1e-3)
HALF = Tolerance(logprob=0.2, draw=0.05, miss=0.05)
"""Where either side computed in bfloat16 or float16."""


def judge_scores(
    scores: Sequence[TokenScores], tolerance: Tolerance
) -> Iterator[tuple[int | None, str]]:
    """Yield what the tests refuse, with the place of the rollout, None for all together."""
    level = math.log(2 * (len(scores) + 1) / ALPHA)  # -log of each test's share of ALPHA
    whole = TokenScores(
        num_tokens=sum(score.num_tokens for score in scores),
        logprob_error=0.0,
        log_e=tuple(map(sum, zip(*(s.log_e for s in scores), strict=True))),
        num_draws=sum(score.num_draws for score in scores),
        num_misses=sum(score.num_misses for score in scores),
    )
    for place, score in [*enumerate(scores), (None, whole)]:
        if not score.logprob_error <= tolerance.logprob:
            yield place, f"its log-probs differ by {score.logprob_error:.3g} on average"
        highest = max(score.log_e)
        mean_e = sum(math.exp(value - highest) for value in score.log_e) / len(score.log_e)
        log_e = highest + math.log(mean_e)
        if not log_e < level:
            yield place, f"these weights did not draw its tokens (log e = {log_e:.1f})"
        if _log_tail(score.num_misses, score.num_draws, tolerance.miss) > level:
            yield (
                place,
                f"{score.num_misses} of {score.num_draws} tokens are not those that its seed draws",
            )


def _log_tail(num_misses: int, num_draws: int, miss: float) -> float:
    """Return n KL(k/n || miss), which is at most -log P(at least k misses)."""
    if not num_draws or num_misses <= miss * num_draws:
        return 0.0
    share = num_misses / num_draws
    rest = 0.0 if share == 1 else (1 - share) * math.log((1 - share) / (1 - miss))
    return num_draws * (share * math.log(share / miss) + rest)

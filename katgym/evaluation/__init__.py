"""Evaluation of runs: statistics over rollouts, summaries, comparisons, leaderboards, exports.

Names are reached through their modules' dotted names; numpy is loaded there, so `import katgym`
stays light.
"""

__all__ = [
    "compare",
    "every_eval_ever",
    "leaderboard",
    "leaderboard_html",
    "leaderboard_text",
    "paired",
    "pass_k",
    "plan",
    "run",
    "statistics",
    "store",
    "summary",
]

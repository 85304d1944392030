"""Evaluation of runs: statistics over rollouts, summaries, comparisons, leaderboards, exports.

Names are reached through their modules' dotted names; numpy is loaded there, so `import katgym`
stays light.
"""

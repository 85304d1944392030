"""Statistics over rollouts: summaries, clustered intervals, pass@k, paired comparison."""

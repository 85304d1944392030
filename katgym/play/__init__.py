"""Playing: the agent loop, matches, many rollouts at once, and the record of an episode."""

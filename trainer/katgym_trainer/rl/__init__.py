"""Reinforcement learning: groups of rollouts are played, trained on, and played better."""

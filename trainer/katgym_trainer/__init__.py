"""The learner: token trie, packing, losses, RL loop. It holds no public names yet."""

__all__: list[str] = []

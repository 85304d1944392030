"""Tree attention and edge log-probs. It holds no public names yet."""

__all__: list[str] = []

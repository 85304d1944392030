"""Plans of forests: what all layers share, made once, and ahead of time."""

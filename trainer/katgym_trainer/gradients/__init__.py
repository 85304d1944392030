"""Models run over forests, whole or in parts, and losses over all of a step."""

"""Several processes that train one model: who they are, its shards, rows, passes."""

TIMEOUT_S = 1800.0
"""How long a rank waits for the others, who may write a checkpoint or play solutions meanwhile."""

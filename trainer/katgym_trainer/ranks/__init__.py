"""Several processes that train one model: who they are, its shards, rows, passes."""

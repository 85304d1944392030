"""Running models on packed forests."""

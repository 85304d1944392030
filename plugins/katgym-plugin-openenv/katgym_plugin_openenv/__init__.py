"""OpenEnv's protocol in both directions. Not here: registration (`plugin.py`)."""

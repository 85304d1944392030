"""Policies behind an HTTP API: OpenAI-style chat and vLLM's token API."""

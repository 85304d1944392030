"""Rendering: messages to prompt token ids by appending, sampled tokens back to messages."""

"""Sampling from transformers models in this process, with continuous batching."""

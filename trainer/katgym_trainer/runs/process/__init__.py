"""The process of a run: signals, log file, memory, a full disk."""

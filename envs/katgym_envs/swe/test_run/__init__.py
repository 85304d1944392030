"""Runs chosen tests in a sandbox and brings back one status a test over a private channel."""

"""Servers that sample for a run: starting, failover, load balancing, sleep."""

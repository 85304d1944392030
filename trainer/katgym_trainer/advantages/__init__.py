"""Rewards become advantages, and advantages are scaled."""

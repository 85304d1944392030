"""Optimizers, schedules and float32 master weights."""

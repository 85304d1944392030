"""ATIF, the trajectory format of Harbor: written from a store, read as rollouts. See README.md."""

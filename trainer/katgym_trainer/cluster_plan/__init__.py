"""Predictions of a run on given nodes, by simulating its loop; nothing is started."""

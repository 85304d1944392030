"""The state of a workspace as data: made before an episode, compared after it. See README.md."""

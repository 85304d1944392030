"""Tasks from merged pull requests of a local clone and a dump of its tracker. See README.md."""

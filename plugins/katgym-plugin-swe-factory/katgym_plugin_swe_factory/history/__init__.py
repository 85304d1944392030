"""Reading of a clone and of a dump of its tracker. See README.md."""

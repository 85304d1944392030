"""Sets of tasks on disk: packages with edits, rows with a hidden store. See README.md."""

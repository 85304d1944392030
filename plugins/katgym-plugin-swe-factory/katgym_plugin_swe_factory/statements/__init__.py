"""Problem statements written from what failing tests see. See README.md."""

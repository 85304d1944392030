"""Web pages to be written, judged by play in a browser."""

"""The pages: HTML, charts, and the data of lists."""

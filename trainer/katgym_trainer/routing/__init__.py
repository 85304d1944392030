"""Expert routes of rows, and their replay by the routers of a mixture of experts."""

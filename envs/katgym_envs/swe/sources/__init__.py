"""Where tasks come from: specs that regenerate them, rows with a hidden store. See README.md."""

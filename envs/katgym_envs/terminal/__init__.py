"""Terminal-v0: tasks in a sandboxed shell, graded by the files that are there at the end."""

"""Model Context Protocol: a server's tools as an env's tools, and any env served over it."""

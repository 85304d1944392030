"""The embedded backend: Linux namespaces, no daemon. See `backend.py`."""

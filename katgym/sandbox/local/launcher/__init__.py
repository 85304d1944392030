"""The launcher of local sandboxes, and what its forks become: what runs in namespaces."""

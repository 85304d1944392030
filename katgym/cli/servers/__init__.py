"""Commands about sandboxes, and servers other than those of models."""

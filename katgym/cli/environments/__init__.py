"""Commands about environments, plugins and this machine."""

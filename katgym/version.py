"""The version of katgym, from the installed distribution's metadata."""

from importlib.metadata import version

__version__: str = version("katgym")

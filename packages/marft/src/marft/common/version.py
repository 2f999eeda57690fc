"""Version of MARFT."""

__version__ = "0.1.0"

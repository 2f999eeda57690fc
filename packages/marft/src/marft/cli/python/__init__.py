"""Python API behind ``import marft``."""

"""Python API for marft_serve."""

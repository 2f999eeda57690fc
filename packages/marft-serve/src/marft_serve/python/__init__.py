"""The Python API of marft_serve."""

"""Python API of marft_lab."""

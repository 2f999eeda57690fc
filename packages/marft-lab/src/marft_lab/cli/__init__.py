"""Commands of marft_lab."""

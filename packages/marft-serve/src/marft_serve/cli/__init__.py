"""Commands of marft_serve."""

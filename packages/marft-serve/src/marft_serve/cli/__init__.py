"""Commands from marft_serve."""

"""Examples that need marft_serve."""

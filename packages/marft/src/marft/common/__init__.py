"""Types and helpers that every other room uses."""

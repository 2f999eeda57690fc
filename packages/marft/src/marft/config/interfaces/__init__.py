"""Base classes of plugins: one file per kind, with the types of its methods."""

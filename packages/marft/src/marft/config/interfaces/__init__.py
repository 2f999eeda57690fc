"""Base classes of plugins: one file a kind, with the types that the methods of the kind take and return."""

"""Memory systems: what is written is kept in some form, and read back under a budget."""

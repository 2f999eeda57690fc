"""Memory systems: storage of texts in various forms, with reads under a token budget."""

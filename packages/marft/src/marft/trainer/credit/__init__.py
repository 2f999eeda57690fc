"""Credit estimators, one per file."""

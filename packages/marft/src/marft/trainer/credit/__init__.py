"""Credit estimators, one a file."""

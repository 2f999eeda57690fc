"""Command-line arguments and options."""

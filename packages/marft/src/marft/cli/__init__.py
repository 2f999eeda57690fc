"""Command-line interface ``marft`` and the Python API."""

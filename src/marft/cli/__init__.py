"""The ``marft`` command."""

"""``marft view``: local web page with runs, read-only."""

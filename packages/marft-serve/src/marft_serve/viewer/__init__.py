"""``marft view``: runs in a local web page, read and never written."""

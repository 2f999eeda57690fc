"""What ``import marft`` offers."""

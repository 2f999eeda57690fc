"""The environments that MARFT brings, and the check of environments."""

"""Built-in environments. Packages register others under the entry-point group ``marft.environments``."""

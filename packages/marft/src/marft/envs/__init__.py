"""Built-in environments. Others register under the entry-point group ``marft.environments``."""

"""Parts and a script to learn from, importable as they stand: ``marft.examples.plugins:Median``."""

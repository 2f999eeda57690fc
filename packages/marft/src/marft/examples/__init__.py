"""Example plugins and a demo script, ready to import: ``marft.examples.plugins:Median``."""

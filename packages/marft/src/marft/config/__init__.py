"""Run settings: strict pydantic models, read once at start. Imports no torch."""

from marft.config.load import load_recipe, parse_recipe, to_toml
from marft.config.run import RunSettings

__all__ = ["RunSettings", "load_recipe", "parse_recipe", "to_toml"]

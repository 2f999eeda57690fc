"""Capacity planning: memory and step time of a recipe by arithmetic, without loading models or torch."""

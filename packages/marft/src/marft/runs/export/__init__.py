"""Team export: a folder with adapters, weights, a manifest, a recipe and a model card."""

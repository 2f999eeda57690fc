"""A trained team as a folder that others can use: adapters, weights, a manifest, a recipe and a model card."""

"""Tasks and recipes for a small real model, for :mod:`real_model`."""

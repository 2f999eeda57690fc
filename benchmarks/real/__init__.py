"""A real model, and tasks small enough for it: what :mod:`real_model` trains on."""

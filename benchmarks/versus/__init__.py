"""One training step of MARFT beside one of TRL: the same model, the same prompts, the same number of tokens."""

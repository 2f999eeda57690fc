"""One training step of MARFT and one of TRL, with the same model, prompts and number of tokens."""

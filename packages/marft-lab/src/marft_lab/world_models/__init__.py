"""World models: predictions of an environment's responses, learned from observed transitions."""

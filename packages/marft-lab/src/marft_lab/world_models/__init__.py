"""World models: what an environment would answer, learned from what it has answered."""

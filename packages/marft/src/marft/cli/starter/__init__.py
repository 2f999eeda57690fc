"""What ``marft init`` writes: a recipe, a reward function with its test, some data, and the next commands."""

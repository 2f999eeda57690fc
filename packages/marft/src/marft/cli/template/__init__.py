"""Files written by ``marft init``: recipe, reward function with test, data, and next commands."""

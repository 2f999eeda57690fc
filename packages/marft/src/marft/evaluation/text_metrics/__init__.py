"""Text statistics of agents, computed without a model: repetition, scripts, kinds of characters and token shares."""

"""Finding what is wrong with an environment: it is loaded, played by several players, and what was seen is judged."""

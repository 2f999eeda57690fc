"""Flow networks: what successful episodes did, as nodes and edges that are played, learned, reworded and skipped."""

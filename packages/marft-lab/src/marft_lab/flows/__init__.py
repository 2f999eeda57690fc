"""Flow networks: nodes and edges from successful episodes, to play, learn, reword and skip."""

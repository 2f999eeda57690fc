"""Run folders: recipes, checkpoints, metrics, episodes and exports."""

"""What a run leaves behind: its folder, checkpoints, metrics, episodes and report."""

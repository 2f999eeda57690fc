"""What a run leaves behind: its folder, checkpoints, metrics and episodes."""

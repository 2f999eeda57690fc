"""What each site of a federation goes on from: one class a file."""

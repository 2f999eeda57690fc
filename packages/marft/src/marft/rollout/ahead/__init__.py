"""Episodes that are played ahead of the step that learns from them, and learned from more than once."""

"""What an environment is held to: pure functions of what was seen, one file a subject."""

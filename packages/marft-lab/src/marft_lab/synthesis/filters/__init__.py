"""What is left out of what a teacher has played: one file a filter, each a pure function."""

"""Where new instructions come from: one file a proposer."""

"""Sites that learn together and keep what they learn from: adapters leave them, and nothing else."""

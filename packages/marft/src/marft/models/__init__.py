"""Loading base models, per-agent LoRA on one shared forward, the critic, and log-probabilities in chunks."""

"""Model loading, multi-adapter LoRA in a shared forward, the value head, and chunked log-probabilities."""

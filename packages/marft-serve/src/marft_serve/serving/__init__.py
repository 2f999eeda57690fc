"""A trained team behind an OpenAI-compatible address: one model for each role, and one for all of it."""

"""Trained team behind an OpenAI-compatible API, with one model for each role and one for the whole team."""

"""Models behind OpenAI-compatible endpoints: rate limits, timeouts and strict response parsing."""

"""Models behind OpenAI-compatible endpoints: asked within limits of rate and time, their answers read strictly."""

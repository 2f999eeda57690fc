"""Who samples tokens: the in-process engine, and the renderer that makes its prompts."""

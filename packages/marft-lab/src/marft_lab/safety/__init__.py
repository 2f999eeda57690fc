"""Safety evaluation: obedience to injected prompts, forbidden content, and leaks of secrets."""

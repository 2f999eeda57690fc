"""Prompt optimization: instructions are proposed, tested against the current instructions, and accepted if better."""

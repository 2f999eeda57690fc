"""The subcommands: their words and what they say of themselves. What they do is imported when one runs."""

"""Wire protocols of clients: Chat Completions, Responses and Anthropic Messages, each converted to a common chat."""

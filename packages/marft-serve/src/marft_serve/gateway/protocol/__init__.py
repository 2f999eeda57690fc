"""How clients ask and are answered: Chat Completions, Responses, Anthropic Messages. Each is read into one chat."""

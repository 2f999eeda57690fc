"""A gateway for agents that are somebody else's program: its clients ask over HTTP, and every request is an action."""

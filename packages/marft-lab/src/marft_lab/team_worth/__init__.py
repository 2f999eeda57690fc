"""Whether the team is worth what it costs: held against one agent alone, and against itself with one thing changed."""

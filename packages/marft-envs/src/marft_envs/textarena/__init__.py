"""Text games for several players: games from the TextArena package, and three built-in games."""

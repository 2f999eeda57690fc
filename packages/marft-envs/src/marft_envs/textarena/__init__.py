"""Games of several players, in text: those of the package TextArena, and three of our own that need no package."""

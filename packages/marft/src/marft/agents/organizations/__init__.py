"""Organizations: the order of actions and the visibility between agents, each a few lines of ``asyncio``."""

"""Organizations: who acts, when, and seeing what. Each is a few lines of ``asyncio`` on callable seats."""

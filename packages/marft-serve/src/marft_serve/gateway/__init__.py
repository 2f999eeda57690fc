"""Gateway for agents in external programs: clients send HTTP requests, and each request becomes an action."""

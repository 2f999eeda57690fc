"""Agents: profiles, teams, organizations, channels, memory, tools and the episode runner."""

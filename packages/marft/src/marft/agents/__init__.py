"""Agents: profiles, teams, organizations, what they read of each other, memory, tools; and playing an episode."""

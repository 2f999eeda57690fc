"""Inference engines: local models, engines in their own process, endpoints, people; chat rendering and tool formats."""

"""Serving a trained team, the gateway for programs of others, the viewer, and traces."""

"""Shared parts for grid environments: cells and maps, symmetries, distances, move parsing, sessions."""

"""Shared types and helpers, imported by every other package."""

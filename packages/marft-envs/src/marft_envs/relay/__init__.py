"""Distributed answers: agents hold parts and exchange costly messages."""

"""Recorded conversations of other programs: read, graded, and learned from by imitation."""

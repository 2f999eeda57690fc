"""Recorded conversations from other programs: parsing, grading and imitation learning."""

"""Processes of ours that end when we do, with all that they have started."""

from pathlib import Path

SUBREAPER = Path(__file__).with_name("subreaper.py")

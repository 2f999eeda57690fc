"""Child processes that end with their parent, together with all of their descendants."""

from pathlib import Path

SUBREAPER = Path(__file__).with_name("subreaper.py")

from __future__ import annotations

import os


def search_web() -> str:
    """Ask the web."""
    return os.environ.get("RAPID_API_KEY", "no key")

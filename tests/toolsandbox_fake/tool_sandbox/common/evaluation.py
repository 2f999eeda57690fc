from __future__ import annotations


class MilestoneMatcher:
    """Not asked by the stand-in's scenarios."""

"""Joint-trajectory metrics: pure functions on episodes."""

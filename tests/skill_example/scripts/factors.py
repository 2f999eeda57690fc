"""Reading the table of factors."""

from pathlib import Path


def read(table: Path) -> dict[str, float]:
    """Metres of each unit."""
    return {unit: float(metres) for unit, metres in map(str.split, table.read_text().splitlines())}

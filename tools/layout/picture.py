"""Draw the rooms and the satellites with the imports between them, as SVG.

::

    python tools/layout/picture.py            # writes docs/assets/rooms.svg
    python tools/layout/picture.py FILE.svg

A box is a room or a satellite, with its lines of code. An arrow points from an importer to what it imports, and is as
wide as the imports are many. Arrows that follow from others are left out: if C imports B and B imports A, then no arrow
from C to A is drawn.
"""

from __future__ import annotations

import sys
from collections import Counter
from html import escape
from math import log2
from pathlib import Path

from layout import ORDER, ROOMS, ROOT, code_lines, imports, modules, place_of

OUTPUT = ROOT / "docs" / "assets" / "rooms.svg"
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y = 150, 46, 34, 54  # pixels


def count_imports() -> Counter[tuple[str, str]]:
    """Return the number of imports from one place to another. Names in strings, such as those of plugins, count not."""
    pairs = ((place_of(found.importer), place_of(found.imported)) for found in imports() if not found.text)
    return Counter((importer, imported) for importer, imported in pairs if importer != imported)


def arrows(counts: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs to draw: those that no chain of other pairs implies."""
    below = {place: {imported for importer, imported in counts if importer == place} for place in ORDER}

    def reaches(start: str, end: str) -> bool:
        return end in below[start] or any(reaches(middle, end) for middle in below[start])

    return [
        (importer, imported)
        for importer, imported in counts
        if not any(reaches(middle, imported) for middle in below[importer] - {imported})
    ]


def levels(pairs: list[tuple[str, str]]) -> list[list[str]]:
    """Return the places row by row, the lowest first: each above everything that it imports."""
    height: dict[str, int] = {}
    for place in ORDER:
        height[place] = 1 + max((height[imported] for importer, imported in pairs if importer == place), default=-1)
    return [[place for place in ORDER if height[place] == row] for row in range(max(height.values()) + 1)]


def draw() -> str:
    """Return the picture as SVG."""
    counts, lines = count_imports(), Counter[str]()
    for name, file in modules().items():
        lines[place_of(name)] += code_lines(file)
    pairs = arrows(counts)
    rows = levels(pairs)
    width = max(map(len, rows)) * (BOX_WIDTH + GAP_X) + GAP_X
    height = len(rows) * (BOX_HEIGHT + GAP_Y) + GAP_Y
    corner: dict[str, tuple[int, int]] = {}
    for number, row in enumerate(rows):
        left = (width - len(row) * (BOX_WIDTH + GAP_X) + GAP_X) // 2
        for column, place in enumerate(row):
            y = height - (number + 1) * (BOX_HEIGHT + GAP_Y)
            corner[place] = (left + column * (BOX_WIDTH + GAP_X), y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 8 4 0 8z" fill="#667"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for importer, imported in sorted(pairs):
        (x1, y1), (x2, y2) = corner[importer], corner[imported]
        stroke = 0.6 + log2(counts[importer, imported]) / 4
        parts.append(
            f'<line x1="{x1 + BOX_WIDTH / 2}" y1="{y1 + BOX_HEIGHT}" x2="{x2 + BOX_WIDTH / 2}" y2="{y2 - 2}" '
            f'stroke="#667" stroke-width="{stroke:.1f}" marker-end="url(#head)">'
            f"<title>{importer} → {imported}: {counts[importer, imported]} imports</title></line>"
        )
    for place, (x, y) in corner.items():
        fill = "#e3edf9" if place in ROOMS else "#f6ead7"
        parts.append(
            f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="{fill}" stroke="#99a"/>'
            f'<text x="{x + BOX_WIDTH / 2}" y="{y + 20}" text-anchor="middle" font-size="15">{escape(place)}</text>'
            f'<text x="{x + BOX_WIDTH / 2}" y="{y + 37}" text-anchor="middle" font-size="11" fill="#556">'
            f"{lines[place]:,} lines</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT
    output.write_text(draw(), encoding="utf-8")
    print(output)

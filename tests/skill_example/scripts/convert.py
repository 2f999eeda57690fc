"""Convert a length to metres."""

import sys
from pathlib import Path

from factors import read

number, unit = sys.argv[1:]
print(f"{float(number) * read(Path('table.txt'))[unit]:g} m")  # noqa: T201

"""Run a script on the simulated GPU and print the counts: ``python -m tests.simulated_gpu script.py arguments…``."""

from __future__ import annotations

import runpy
import sys

from tests.simulated_gpu import counting, simulated_gpu

if len(sys.argv) < 2:
    sys.exit("usage: python -m tests.simulated_gpu script.py [arguments…]")
sys.argv = sys.argv[1:]
with simulated_gpu(), counting(sys.argv[0]) as counts:
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        sys.stderr.write(f"{counts.report()}\n")

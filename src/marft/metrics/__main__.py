"""``python -m marft.metrics``: prints docs/metrics.md."""

from __future__ import annotations

import sys

from marft.metrics.page import page

sys.stdout.write(page())

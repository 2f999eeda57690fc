"""``python -m marft.common.metrics``: print docs/metrics.md."""

from __future__ import annotations

import sys

from marft.common.metrics.page import page

sys.stdout.write(page())

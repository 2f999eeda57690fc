"""``python -m marft.common.metrics``: print docs/metrics.md."""

from __future__ import annotations

import sys

from marft.common.metrics.docs_page import render_page

sys.stdout.write(render_page())

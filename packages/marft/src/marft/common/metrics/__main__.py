"""``python -m marft.common.metrics``: print docs/metrics.md."""

from __future__ import annotations

import sys

from marft.common.metrics.catalog import CATALOG


def render_page() -> str:
    """Return docs/metrics.md as rendered from the catalog."""
    lines = [
        "# Metrics",
        "",
        "What stands in `metrics.jsonl`, one object a step; TensorBoard has the same names. A metric of an agent is",
        "called `agents/<role>/…`, one of a policy `policies/<name>/…`. ↑ and ↓ say which way is good. *Shown as* is",
        "what a step's line and the pictures call it.",
        "(This page is written by `python -m marft.common.metrics`.)",
        "",
        "What *needs* something is there where the [environment declares it](environments.md#what-a-metric-needs), and",
        "absent elsewhere: nothing is guessed.",
    ]
    for title, metrics in CATALOG.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| metric | shown as | for | meaning | where it looks wrong |",
            "| --- | --- | --- | --- | --- |",
        ]
        for metric in metrics:
            arrow = {"higher": " ↑", "lower": " ↓", "": ""}[metric.better]
            unit = f" ({metric.unit})" if metric.unit else ""
            scopes = ", ".join(metric.scopes)
            description = f"{metric.description}{unit}".replace("|", "\\|")
            lines.append(f"| `{metric.name}`{arrow} | {metric.label} | {scopes} | {description} | {metric.hint} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render_page())

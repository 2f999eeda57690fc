"""``python -m marft.common.metrics``: print docs/metrics.md."""

from __future__ import annotations

import sys

from marft.common.metrics.catalog import CATALOG


def render_page() -> str:
    """Return docs/metrics.md as rendered from the catalog."""
    lines = [
        "# Metrics",
        "",
        "Definitions of the numbers in `metrics.jsonl` (one JSON object per training step) and in TensorBoard.",
        "Metrics of an agent start with `agents/<role>/`, metrics of a policy with `policies/<name>/`. ↑ means higher",
        "is better, ↓ lower is better. *Shown as* gives the label in step lines, tables and curves. Shares go from 0",
        "to 1; MARFT prints percent. [Read the metrics](read_metrics.md) explains how to use the numbers.",
        "",
        "Some metrics *need* facts from the environment: [declare the facts](environments.md#what-a-metric-needs) in",
        "`info`. Without a declaration, MARFT omits the metric. (`python -m marft.common.metrics` generates this",
        "page.)",
    ]
    for title, metrics in CATALOG.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| metric | shown as | for | meaning | advice |",
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

"""Hardware efficiencies: reached fractions of a card's peak rates, with sources; ``--efficiency`` overrides them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from marft.config.settings import did_you_mean


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Fractions of a card's peak rates, and fixed times.

    ``benchmarks/plan_published.py`` fits some of them to a part of the published step times, and checks them on the
    rest (``benchmarks/results/plan_published.md``).
    """

    products: float = 1.0  # fraction of the peak matrix-product rate, on a card with ample bandwidth; fitted
    intensity: float = 118.0  # operations per byte of bandwidth; fitted
    bandwidth: float = 0.60  # fraction of memory bandwidth while decoding; an assumption
    link: float = 0.60  # fraction of the bandwidth between cards; an assumption
    host: float = 0.25  # fraction of the bandwidth to unpinned host memory; an assumption
    launch: float = 1.17e-3  # minimum seconds per layer of a forward pass, with separate kernel launches; fitted
    captured: float = 0.06e-3  # minimum seconds per layer with captured graphs (vLLM's default); an assumption
    iteration: float = 2e-3  # seconds per engine step besides its layers; an assumption
    cpu_launch: float = 0.15e-3  # seconds per layer on a CPU; an assumption

    def rate(self, peak: float, bandwidth: float) -> float:
        """Return the operations per second of a model's layers, forward or backward.

        The time is the sum of matrix products at ``peak`` operations per second and other operations limited by
        ``bandwidth`` bytes per second.

        >>> [round(Efficiencies().rate(*card) / card[0], 2) for card in ((989e12, 3.35e12), (148e12, 4e12))]
        [0.29, 0.76]
        """
        return 1.0 / (1.0 / (self.products * peak) + 1.0 / (self.intensity * bandwidth))

    def with_overrides(self, changes: Sequence[str]) -> Efficiencies:
        """Return the efficiencies with overrides.

        Args:
            changes: texts of the form ``name=number``.

        Raises:
            ValueError: unknown name, or not a finite number above 0.
        """
        names = {field.name for field in fields(self)}
        changed = self
        for change in changes:
            name, _, text = change.partition("=")
            if name not in names:
                raise ValueError(f"--efficiency: none is called {name!r}{did_you_mean(name, names)}")
            try:
                value = float(text)
            except ValueError:
                value = 0.0
            if not 0 < value < float("inf"):
                raise ValueError(f"--efficiency {name}: {text!r} is no number above 0; write {name}=0.5")
            changed = replace(changed, **{name: value})
        return changed

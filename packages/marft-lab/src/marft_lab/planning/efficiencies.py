"""What of a card's rates is reached: named, with where each number is from; ``--efficiency`` replaces any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from marft.config.settings import did_you_mean


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Shares of a card's rates, and what costs time whatever the rates.

    ``benchmarks/plan_published.py`` fits some to a part of the published step times and holds them to the rest
    (``benchmarks/results/plan_published.md``).
    """

    products: float = 1.0  # of the product rate, on a card whose bandwidth is ample for it; fitted
    intensity: float = 118.0  # operations for each byte that bandwidth could bring meanwhile; fitted
    bandwidth: float = 0.60  # of a card's memory, while decoding; an assumption
    link: float = 0.60  # of the link between cards; an assumption
    host: float = 0.25  # of the link to the host's memory, which is not pinned; an assumption
    launch: float = 1.17e-3  # seconds that a layer of a forward takes at least, launched one by one; fitted
    captured: float = 0.06e-3  # the same, where the engine replays captured graphs (vLLM's default); an assumption
    iteration: float = 2e-3  # seconds that an engine's step takes beside its layers; an assumption
    cpu_launch: float = 0.15e-3  # seconds of a layer on a CPU; an assumption

    def rate(self, peak: float, bandwidth: float) -> float:
        """Operations a second that a model's layers reach, forward or backward: what products take, and what all
        else takes, one after the other.

        >>> [round(Efficiencies().rate(*card) / card[0], 2) for card in ((989e12, 3.35e12), (148e12, 4e12))]
        [0.29, 0.76]
        """
        return 1.0 / (1.0 / (self.products * peak) + 1.0 / (self.intensity * bandwidth))

    def with_changes(self, changes: Sequence[str]) -> Efficiencies:
        """
        Args:
            changes: ``name=number`` each.

        Raises:
            ValueError: there is no such one, or it is no number above 0.
        """
        known = {field.name for field in fields(self)}
        changed = self
        for change in changes:
            name, _, text = change.partition("=")
            if name not in known:
                raise ValueError(f"--efficiency: none is called {name!r}{did_you_mean(name, known)}")
            try:
                value = float(text)
            except ValueError:
                value = 0.0
            if not 0 < value < float("inf"):
                raise ValueError(f"--efficiency {name}: {text!r} is no number above 0; write {name}=0.5")
            changed = replace(changed, **{name: value})
        return changed

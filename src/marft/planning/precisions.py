"""In how many bytes a recipe's weights are held, and how its products are computed."""

from __future__ import annotations

from dataclasses import dataclass

from marft.config.models import ModelSettings
from marft.planning.cards import Card
from marft.planning.shapes import Shape


@dataclass(frozen=True, slots=True)
class Precision:
    """Of a model's base weights on a device."""

    half: bool  # weights of the layers are bfloat16
    on_cpu: bool

    @staticmethod
    def of(model: ModelSettings, card: Card) -> Precision:
        """``"auto"`` is float32 on a CPU and bfloat16 on a GPU (:func:`marft.models.loading.pick_dtype`)."""
        return Precision(model.dtype == "bfloat16" or (model.dtype == "auto" and not card.is_cpu), card.is_cpu)

    @property
    def element(self) -> int:
        """Bytes of a number that products are made of: on a CPU weights held in half are multiplied in float32, and so
        are those of a model that is tuned whole."""
        return 2 if self.half and not self.on_cpu else 4

    @property
    def widened(self) -> bool:
        """Whether a model that is tuned whole computes in more than its base is held in."""
        return self.half and self.on_cpu

    def weights(self, shape: Shape) -> float:
        """Bytes of a base. On a CPU embeddings, head, norms and biases of a half-precision one are float32
        (:mod:`marft.models.held_in_half`)."""
        if not self.half:
            return 4.0 * shape.parameters
        if not self.on_cpu:
            return 2.0 * shape.parameters
        return 2.0 * shape.matrix_parameters + 4.0 * (shape.parameters - shape.matrix_parameters)

    def rate(self, card: Card) -> float:
        """Operations a second of its products."""
        return card.flops if self.element == 2 else card.flops_float32

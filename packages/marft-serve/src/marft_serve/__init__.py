"""Server of a trained team, gateway for external programs, viewer and traces."""

from typing import TYPE_CHECKING

from marft.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from marft_serve.python.gateway import Gateway
    from marft_serve.python.traces import score, sft
    from marft_serve.traces.scores import Scores

__all__ = ["Gateway", "Scores", "score", "sft"]
__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "marft_serve.python.gateway": ("Gateway",),
        "marft_serve.python.traces": ("score", "sft"),
        "marft_serve.traces.scores": ("Scores",),
    },
)

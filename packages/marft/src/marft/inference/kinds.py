"""``[engine]``: how agents sample. One class a kind of engine; reading it imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from marft.config.parts import EnginePart
from marft.config.settings import CountOrNone, Positive

if TYPE_CHECKING:
    from marft.agents.engine import Engine
    from marft.config.run import RunSettings
    from marft.inference.caller_thread import CallerThreadExecutor
    from marft.models.pool import Models


class Local(EnginePart):
    """The in-process engine. ``in_order`` admission makes results independent of timing to the last bit."""

    holds_grammars: ClassVar[bool] = True
    tells_tokens: ClassVar[bool] = True
    max_rows: Annotated[int, Field(ge=1, le=65_536)] = 256  # requests that are sampled together
    prefix_cache_mb: CountOrNone = 512  # kept keys and values, a base, for prompts that begin alike; 0: none
    admission: Literal["auto", "in_order", "continuous"] = "auto"  # auto: in_order on CPU, continuous on GPU

    def open(self, run: RunSettings, models: Models, policies: Sequence[str], thread: CallerThreadExecutor) -> Engine:
        """An engine that computes on ``thread`` with the learner's own weights."""
        from marft.inference.local import LocalEngine, LocalPolicy  # torch, which reading a recipe does without

        mine = {name: models.policies[name] for name in policies}
        return LocalEngine(
            {name: LocalPolicy(one.backbone, one.adapter, one.tokenizer, one.stop_ids) for name, one in mine.items()},
            thread,
            seed=run.seed,
            max_rows=self.max_rows,
            prefix_bytes=self.prefix_cache_mb * 2**20,
            in_order=self.admission == "in_order" or (self.admission == "auto" and models.device.type == "cpu"),
        )


class Vllm(EnginePart):
    """vLLM, in a process and a Python environment of its own, which ``marft engine install vllm`` makes. One process
    samples for all adapters of a base; a fully tuned policy has one of its own."""

    holds_grammars: ClassVar[bool] = True
    tells_tokens: ClassVar[bool] = True
    apart: ClassVar[bool] = True
    python: str = ""  # of the environment that vLLM is in; "": the one that `marft engine install vllm` makes
    max_rows: Annotated[int, Field(ge=1, le=65_536)] = 256  # requests that are sampled together
    replicas: Annotated[int, Field(ge=1, le=64)] = 1  # processes for each base, among which requests are divided
    devices: tuple[str, ...] = ()  # GPUs that they divide evenly, as CUDA numbers them; []: all, for several replicas
    sleep: bool = False  # gives its GPU's memory back while the learner steps: for a GPU that both share
    patience_seconds: Positive = 600.0  # without a word from it, before it is started again
    options: dict[str, object] = {}  # other arguments of its own (AsyncEngineArgs), such as gpu_memory_utilization

    def open(self, run: RunSettings, models: Models, policies: Sequence[str], thread: CallerThreadExecutor) -> Engine:
        """Processes that sample with copies of the learner's weights."""
        from marft.inference.apart.vllm import open_vllm  # torch, which reading a recipe does without

        return open_vllm(self, run, models, policies, thread)


class Process(EnginePart):
    """Our own engine, in a process of its own with copies of the weights: one for each base, and one for each fully
    tuned policy. It samples while the learner steps."""

    holds_grammars: ClassVar[bool] = True
    tells_tokens: ClassVar[bool] = True
    apart: ClassVar[bool] = True
    device: str = ""  # that it samples on; "": the run's
    threads: Annotated[int, Field(ge=0, le=4096)] = 0  # CPU threads of torch there; 0: the run's
    max_rows: Annotated[int, Field(ge=1, le=65_536)] = 256  # requests that are sampled together
    prefix_cache_mb: CountOrNone = 512  # kept keys and values, a base, for prompts that begin alike; 0: none
    patience_seconds: Positive = 600.0  # without a word from it, before it is started again

    def open(self, run: RunSettings, models: Models, policies: Sequence[str], thread: CallerThreadExecutor) -> Engine:
        """Processes that sample with copies of the learner's weights."""
        from marft.inference.apart.process import open_process  # torch, which reading a recipe does without

        return open_process(self, run, models, policies, thread)

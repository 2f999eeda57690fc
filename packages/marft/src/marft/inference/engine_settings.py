"""Settings for ``[engine]``, one class per engine type. Importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from marft.config.interfaces.engine import Engine, EngineFactory, LoadedModels
from marft.config.settings import NonNegativeCount, Positive
from marft.inference.caller_thread import CallerThreadExecutor

if TYPE_CHECKING:
    from marft.config.run import RunSettings


VLLM_MEMORY_SHARE = 0.9  # vLLM's own default of gpu_memory_utilization
WeightUpdates = Annotated[
    Literal["drain", "in_flight"],
    Field(
        description=(
            "weights of running requests after an update; drain: requests finish with their first weights; in_flight: "
            "requests continue with the new weights from the next token"
        )
    ),
]
EnforceEager = Annotated[
    bool,
    Field(description="run decoding operation by operation; false: as CUDA graphs, where the device and the model can"),
]


class Local(EngineFactory):
    """In-process engine. ``in_order`` admission makes results bitwise independent of timing."""

    supports_grammars: ClassVar[bool] = True
    streams_tokens: ClassVar[bool] = True
    max_batch_size: Annotated[int, Field(ge=1, le=65_536)] = Field(
        default=256, description="maximum number of requests in the running batch"
    )
    prefix_cache_mb: NonNegativeCount = Field(
        default=512, description="size limit of the prefix cache, in MiB per base model; 0: no cache"
    )
    admission: Literal["auto", "in_order", "continuous"] = Field(
        default="auto", description="how requests join the batch; auto: in_order on CPU, continuous on GPU"
    )
    enforce_eager: EnforceEager = False

    def open(self, run: RunSettings, models: LoadedModels, policies: Sequence[str], thread: Executor) -> Engine:
        """Open an engine with the learner's own weights; tensor work runs on ``thread``."""
        # imported here, because reading a recipe must not import torch
        from marft.inference.local import LocalEngine, LocalPolicy
        from marft.models.policy_registry import PolicyRegistry

        assert isinstance(models, PolicyRegistry)
        own_policies = {name: models.policies[name] for name in policies}
        return LocalEngine(
            {
                name: LocalPolicy(policy.backbone, policy.adapter, policy.tokenizer, policy.stop_ids)
                for name, policy in own_policies.items()
            },
            thread,
            seed=run.seed,
            max_rows=self.max_batch_size,
            prefix_bytes=self.prefix_cache_mb * 2**20,
            in_order=self.admission == "in_order" or (self.admission == "auto" and models.device.type == "cpu"),
            cuda_graphs=not self.enforce_eager,
        )


class Vllm(EngineFactory):
    """vLLM in a separate process and Python environment, created by ``marft engine install vllm``.

    One process samples for all adapters of a base model. A fully fine-tuned policy has its own process.
    """

    supports_grammars: ClassVar[bool] = True
    streams_tokens: ClassVar[bool] = True
    separate_weights: ClassVar[bool] = True
    python: str = Field(
        default="",
        description='Python of the environment with vLLM; "": the environment made by `marft engine install vllm`',
    )
    max_batch_size: Annotated[int, Field(ge=1, le=65_536)] = Field(
        default=256, description="maximum number of requests in the running batch"
    )
    replicas: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, description="processes per base model, which share the requests"
    )
    devices: tuple[str, ...] = Field(
        default=(),
        description=(
            "GPUs of the replicas, divided evenly and numbered as in CUDA; []: every GPU, with several replicas"
        ),
    )
    weight_updates: WeightUpdates = "drain"
    sleep: bool = Field(
        default=False,
        description="free the engine's GPU memory during the optimizer step, for a GPU shared with the learner",
    )
    timeout_seconds: Positive = Field(
        default=600.0, description="maximum seconds without a message from the process before a restart"
    )
    engine_args: dict[str, object] = Field(
        default={}, description="other vLLM arguments (AsyncEngineArgs), such as gpu_memory_utilization"
    )

    @property
    def device_memory_share(self) -> float:
        """Share of each GPU's memory that a vLLM process reserves."""
        share = self.engine_args.get("gpu_memory_utilization", VLLM_MEMORY_SHARE)
        return float(share) if isinstance(share, int | float) else VLLM_MEMORY_SHARE

    def open(self, run: RunSettings, models: LoadedModels, policies: Sequence[str], thread: Executor) -> Engine:
        """Start vLLM processes with copies of the learner's weights."""
        # imported here, because reading a recipe must not import torch
        from marft.inference.subprocess_engine.launch import open_vllm
        from marft.models.policy_registry import PolicyRegistry

        assert isinstance(models, PolicyRegistry)
        assert isinstance(thread, CallerThreadExecutor)
        return open_vllm(self, run, models, policies, thread)


class Process(EngineFactory):
    """MARFT's engine in a separate process with copies of the weights; samples during the optimizer step.

    Each base model and each fully fine-tuned policy has its own process.
    """

    supports_grammars: ClassVar[bool] = True
    streams_tokens: ClassVar[bool] = True
    separate_weights: ClassVar[bool] = True
    device: str = Field(default="", description='device for sampling; "": the run\'s device')
    threads: Annotated[int, Field(ge=0, le=4096)] = Field(
        default=0, description="number of torch CPU threads in the process; 0: the run's value"
    )
    max_batch_size: Annotated[int, Field(ge=1, le=65_536)] = Field(
        default=256, description="maximum number of requests in the running batch"
    )
    prefix_cache_mb: NonNegativeCount = Field(
        default=512, description="size limit of the prefix cache, in MiB per base model; 0: no cache"
    )
    weight_updates: WeightUpdates = "drain"
    enforce_eager: EnforceEager = False
    timeout_seconds: Positive = Field(
        default=600.0, description="maximum seconds without a message from the process before a restart"
    )

    def open(self, run: RunSettings, models: LoadedModels, policies: Sequence[str], thread: Executor) -> Engine:
        """Start sampling processes with copies of the learner's weights."""
        # imported here, because reading a recipe must not import torch
        from marft.inference.subprocess_engine.launch import open_process
        from marft.models.policy_registry import PolicyRegistry

        assert isinstance(models, PolicyRegistry)
        assert isinstance(thread, CallerThreadExecutor)
        return open_process(self, run, models, policies, thread)

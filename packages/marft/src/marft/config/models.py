"""Base models, local and remote, and policies based on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field, Strict, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.common.errors import UserError
from marft.config.algorithm import LearningRate
from marft.config.endpoint import TeammateEndpoint
from marft.config.paths import ExpandUser
from marft.config.settings import (
    Count,
    Names,
    NonEmptyString,
    NonNegativeCount,
    NotTiny,
    PlainTable,
    Positive,
    Settings,
)

if TYPE_CHECKING:
    from marft.config.run import RunSettings

VERSION_SEPARATOR = "@"  # separator in the names of later versions; invalid in recipe names


def _check_date(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise UserError("must be a day, as in 2024-07-26") from None


class ModelSettings(Settings):
    """Base model: ``"tiny"`` (bundled; ``"tiny-tools"`` supports tool calls), a folder, or a Hugging Face id.

    With an ``endpoint``, the model is remote.
    """

    path: Annotated[NonEmptyString, ExpandUser] = Field(
        description='"tiny", a folder, or a Hugging Face id; for a remote model its name on the server'
    )
    endpoint: TeammateEndpoint | None = Field(default=None, description="endpoint of a remote model")
    revision: NonEmptyString = Field(default="main", description="branch, tag or commit of a Hugging Face id")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="compute dtype; auto: float32 on CPU, bfloat16 on GPU"
    )
    quantization: Literal["none", "nf4"] = Field(
        default="none",
        description=(
            "4-bit base for adapters (QLoRA). nf4: quantize the linear layers of an unquantized checkpoint, with the "
            "package bitsandbytes; none: as in the checkpoint (GPTQ and AWQ stay in 4 bits)"
        ),
    )
    quantization_block_size: Literal[32, 64, 128, 256, 512, 1024, 2048, 4096] = Field(
        default=64, description="weights with a common scale in NF4"
    )
    double_quantization: bool = Field(default=True, description="quantize the scales of NF4, too, to 8 bits")
    context_length: NonNegativeCount = Field(
        default=0,
        description=(
            "context length in tokens, prompt and action together; 0: maximum of the model, or of its local reader"
        ),
    )
    chat_template: Annotated[str, ExpandUser] = Field(
        default="", description="Jinja file that replaces the tokenizer's chat template"
    )
    template_options: PlainTable = Field(
        default={}, description="arguments for the chat template, e.g. enable_thinking = false"
    )
    date: Annotated[str, AfterValidator(_check_date)] = Field(
        default="2024-07-26", description="current date for chat templates with a date"
    )
    gradient_checkpointing: bool = Field(
        default=False, description="recompute activations: less memory, more time, same results"
    )
    router_replay: bool = Field(
        default=False,
        description=(
            "mixture of experts: record the experts of each sampled token, and use the same experts in training"
        ),
    )
    ranks: Annotated[tuple[Annotated[int, Field(ge=0, lt=1024)], ...], Strict(False)] = Field(
        default=(),
        description=(
            "training ranks for the model, e.g. [0, 1]; []: every rank. Models on different ranks train in parallel"
        ),
    )


MAX_LORA_RANK = 65_536  # maximum rank of an adapter
VLLM_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # values of max_lora_rank that vLLM supports
UNSUPPORTED_TARGETS = ("lm_head", "embed_out", "embed_tokens", "wte")  # names of output layers and embeddings


def unsupported_targets(targets: Iterable[str]) -> list[str]:
    """Return targets that name an output layer or embedding, which adapters do not support."""
    return [target for target in targets if target.rpartition(".")[2] in UNSUPPORTED_TARGETS]


class LoraSettings(Settings):
    """LoRA adapter for a policy."""

    rank: Annotated[int, Field(ge=1, le=MAX_LORA_RANK)] = Field(
        default=8, description="rank of the update to each layer"
    )
    alpha: Annotated[Positive, NotTiny] = Field(
        default=16.0, description="scale: the update is multiplied by alpha / rank"
    )
    target_modules: Names = Field(default=("q_proj", "v_proj"), description="names of linear layers")
    target_parameters: Names = Field(
        default=(),
        description='weights of experts, e.g. ["experts.gate_up_proj", "experts.down_proj"]',
    )
    trained_matrices: Literal["both", "B"] = Field(
        default="both",
        description=(
            "trained matrices; B: A stays fixed, half the parameters train, and averages of adapters are exact "
            "(FFA-LoRA)"
        ),
    )

    @field_validator("target_modules")
    @classmethod
    def _check_targets(cls, targets: Names) -> Names:
        if outside := unsupported_targets(targets):
            raise PydanticCustomError(
                "targets",
                "{target} is an output layer or an embedding, and adapters are computed on linear layers of the "
                "decoder alone, such as q_proj, v_proj or down_proj; leave it out, or set train = 'full'",
                {"target": repr(outside[0])},
            )
        return targets

    @model_validator(mode="after")
    def _check_any_target(self) -> Self:
        if not self.target_modules and not self.target_parameters:
            raise PydanticCustomError("targets", "target_modules or target_parameters should have at least 1 item")
        return self


class PoolSettings(Settings):
    """Opponent pool: loaded past versions of a trained policy. Each task has one of them as its opponent."""

    policy: str = Field(description="trained policy that supplies the versions")
    size: Annotated[int, Field(ge=1, le=64)] = Field(
        default=4, description="number of versions, including the untuned version"
    )
    every: Count = Field(default=5, description="steps between new versions")
    selection: Literal["uniform", "latest", "prioritized"] = Field(
        default="uniform",
        description="opponent for a task: uniform, the newest version, or mostly versions with a low win rate",
    )
    power: Positive = Field(
        default=2.0, description="exponent on the share of matches not won, for prioritized selection"
    )


class PolicySettings(Settings):
    """Named weights. Agents with the same policy share them."""

    model: str = Field(description="base model")
    train: Literal["lora", "full", "frozen"] = Field(
        default="lora", description="trained weights: adapter, full model, or none"
    )
    lora: LoraSettings = Field(default=LoraSettings(), description='adapter for train = "lora"')
    adapter: Annotated[str, ExpandUser] = Field(default="", description='initial PEFT adapter folder; "": none')
    learning_rate: LearningRate | None = Field(default=None, description="learning rate; default: the optimizer's")
    pool: PoolSettings | None = Field(
        default=None, description="turns the policy into an opponent pool: frozen past versions of another policy"
    )


Models = Mapping[str, ModelSettings]


def local_model(models: Models, model: str) -> str:
    """Return the local model for ``model``: itself, or the reader for a remote model; "" if missing."""
    endpoint = models[model].endpoint
    if endpoint is None:
        return model
    return endpoint.local_model or next((name for name, candidate in models.items() if candidate.endpoint is None), "")


def reader_models(models: Models) -> set[str]:
    """Return the local models that serve as readers for remote ones."""
    return {local_model(models, name) for name, model in models.items() if model.endpoint is not None}


def pool_slot_names(name: str, size: int) -> tuple[str, ...]:
    """Return the pool's policies, one per version; the first is permanently untuned and has the pool's name.

    >>> pool_slot_names("rival", 3)
    ('rival', 'rival@1', 'rival@2')
    """
    return (name, *(f"{name}{VERSION_SEPARATOR}{number}" for number in range(1, size)))


def is_later_version(policy: str) -> bool:
    """Return True for a pool version that changes during the run."""
    return VERSION_SEPARATOR in policy


def pool_members(policies: Mapping[str, PolicySettings], name: str) -> list[tuple[str, PolicySettings]]:
    """Return the policies to load for a recipe's policy, with their settings.

    For an ordinary policy that is the policy itself. For a pool it is one adapter per version, with the adapter
    settings of the trained policy.
    """
    settings = policies[name]
    if settings.pool is None or settings.pool.policy not in policies:
        return [(name, settings)]
    learner = policies[settings.pool.policy]
    version = settings.model_copy(update={"lora": learner.lora, "adapter": learner.adapter})
    return [(slot, version) for slot in pool_slot_names(name, settings.pool.size)]


def opponent_pools(run: RunSettings) -> dict[str, str]:
    """Return the recipe's opponent pools, each with its trained policy."""
    return {name: policy.pool.policy for name, policy in run.policies.items() if policy.pool is not None}

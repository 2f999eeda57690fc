"""Messages between a run and a subprocess engine. Both sides import this module: only NumPy is required."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from marft.common.processes.messages import Completed, Ready
from marft.common.processes.remote_error import RemoteError
from marft.common.token_data import Grammar
from marft.common.types import SamplingParams

Ids = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint8]
NO_IDS, NO_NUMBERS = np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32)
HEARTBEAT_SECONDS = 5.0  # interval between heartbeats
NO_POSITIONS, NO_BITS = np.zeros(0, np.int32), np.zeros((0, 0), np.uint8)
NO_EXPERTS = np.zeros((0, 0, 0), np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class EngineInit:
    """First message to the engine: base model and engine settings.

    Args:
        model: folder or Hugging Face model id.
        dtype: data type of weights and KV cache.
        max_context: maximum tokens of prompt and action together.
        max_rows: maximum number of requests sampled together.
        max_adapters: maximum number of adapters loaded at the same time.
        max_rank: largest LoRA rank.
        seed: seed for anything without a seed of its own.
        options: engine-specific options, under the engine's own names.
        tokenizer: tokenizer as JSON (library ``tokenizers``), for grammars; "": no grammar support.
        end_token: end-of-turn token, as text.
        sleep_mode: whether the engine will get sleep commands.
        in_flight: whether running requests continue with new weights at their next token.
        router_replay: whether the engine reports the experts of each token.
        expert_adapters: whether adapters change experts.
        recurrent: whether rows have states besides keys and values.
    """

    model: str
    dtype: str
    max_context: int
    max_rows: int
    max_adapters: int
    max_rank: int
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str = ""
    end_token: str = ""
    sleep_mode: bool = False
    in_flight: bool = False
    router_replay: bool = False
    expert_adapters: bool = False
    recurrent: bool = False


@dataclass(frozen=True, slots=True)
class EngineReady(Ready):
    """Message from the engine: ready for requests."""

    program: str  # program name and version
    grammar_version: str = ""  # llguidance version for grammars; "": no grammar support


@dataclass(frozen=True, slots=True, eq=False)
class LoadCommand:
    """Message to the engine: use new weights for a policy.

    Earlier requests finish with the old weights, or continue with the new weights (``EngineInit.in_flight``).

    Args:
        number: id of this command, unique within the run.
        path: folder of an adapter in PEFT format or of a full model; "": the base model itself.
        full_model: whether the folder holds a full model that replaces the base model.
    """

    number: int
    policy: str
    version: int
    path: str = ""
    full_model: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SleepCommand:
    """Message to the engine: free the device memory, or allocate it again. The answer is Completed.

    Args:
        number: id of this command, unique within the run.
        sleep: true frees the memory.
    """

    number: int
    sleep: bool


@dataclass(frozen=True, slots=True, eq=False)
class SampleRequest:
    """Message to the engine: sample one action.

    Args:
        sampling: parameters without stop strings and listener; the run handles both.
        stop_ids: tokens that end the action. The stop token is the action's last token.
        stream: whether to stream each token as soon as it is sampled.
    """

    number: int
    policy: str
    prompt: Ids  # [P]
    sampling: SamplingParams
    seed: int
    stop_ids: list[int]
    stream: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TokenChunk:
    """Message from the engine: new tokens for an action.

    The last message of an action also contains the grammar masks for all its positions
    (:class:`marft.common.token_data.GrammarMasks`), and the experts of the prompt and of all tokens but the last
    (:class:`marft.common.token_data.RoutedExperts`).
    """

    number: int
    tokens: Ids  # [T]
    log_probs: Numbers  # [T], at the sampling temperature; at temperature 1 for a greedy sample
    finish: str  # "stop" or "length"; "": more tokens follow
    lowest: int
    highest: int
    top_ids: Ids = field(default_factory=lambda: NO_IDS)  # [T, alternatives]
    top_log_probs: Numbers = field(default_factory=lambda: NO_NUMBERS)  # [T, alternatives]
    mask_at: Ids = field(default_factory=lambda: NO_POSITIONS)  # [M]
    mask_which: Ids = field(default_factory=lambda: NO_POSITIONS)  # [M]
    mask_table: Bits = field(default_factory=lambda: NO_BITS)  # [masks, bytes]
    forced: Ids = field(default_factory=lambda: NO_POSITIONS)  # positions where the grammar allowed exactly one token
    versions: Ids = field(default_factory=lambda: NO_POSITIONS)  # [T], if weights changed between these tokens
    experts: Ids = field(default_factory=lambda: NO_EXPERTS)  # [S, L, K]

    def __post_init__(self) -> None:
        if self.tokens.ndim != 1 or self.tokens.shape != self.log_probs.shape:
            raise ValueError(f"tokens of shape {self.tokens.shape} and log-probs of {self.log_probs.shape}")


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRequest:
    """Message to the engine: score continuations of a prompt."""

    number: int
    policy: str
    prompt: Ids  # [P]
    options: Ids  # [sum of sizes], concatenated options
    sizes: Ids  # [A]
    temperature: float


@dataclass(frozen=True, slots=True, eq=False)
class ScoreResponse:
    """Message from the engine: scores for the options."""

    number: int
    log_probs: Numbers  # [A], one log-probability per option
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True, eq=False)
class CancelRequest:
    """Message to the engine: cancel a request."""

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class RequestFailed:
    """Message from the engine: the request failed, and its episode cannot be scored."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Heartbeat:
    """Message from the engine at regular intervals: the engine works, even without results yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Rejected:
    """Message from the engine: the request is refused, and would also fail after a restart."""

    number: int
    reason: str


TO_ENGINE = (EngineInit, LoadCommand, SleepCommand, SampleRequest, ScoreRequest, CancelRequest)
FROM_ENGINE = (
    EngineReady,
    Completed,
    TokenChunk,
    ScoreResponse,
    Heartbeat,
    RequestFailed,
    Rejected,
    RemoteError,
)  # a RemoteError ends the engine for good: a restart would also fail
VALUES = (Grammar, SamplingParams)  # classes of nested values

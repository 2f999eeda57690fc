"""Messages between a run and a subprocess engine. Both sides import this module: only numpy is required."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint8]
NO_IDS, NO_NUMBERS = np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32)
BEAT_SECONDS = 5.0  # interval between heartbeats
NO_PLACES, NO_BITS = np.zeros(0, np.int32), np.zeros((0, 0), np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Open:
    """First message to the engine: base model and engine settings.

    Args:
        model: folder or Hugging Face model id.
        dtype: data type of weights and KV cache.
        context: maximum tokens of prompt and action together.
        rows: maximum number of requests sampled together.
        adapters: maximum number of adapters loaded at the same time.
        rank: largest LoRA rank.
        seed: seed for anything without a seed of its own.
        options: engine-specific options, under the engine's own names.
        tokenizer: tokenizer as JSON (library ``tokenizers``), for grammars; "": no grammar support.
        end: end-of-turn token, as text.
        rests: whether the engine will get sleep commands.
    """

    model: str
    dtype: str
    context: int
    rows: int
    adapters: int
    rank: int
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str = ""
    end: str = ""
    rests: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """Message from the engine: ready for requests."""

    program: str  # program name and version
    llguidance: str = ""  # llguidance version for grammars; "": no grammar support


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Message to the engine: use new weights for a policy. Earlier requests finish with the old weights.

    Args:
        number: id of this command, unique within the run.
        path: folder of an adapter in PEFT format or of a full model; "": the base model itself.
        whole: whether the folder holds a full model that replaces the base model.
    """

    number: int
    policy: str
    version: int
    path: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """Message from the engine: a load or sleep command is complete."""

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Rest:
    """Message to the engine: free the device memory, or allocate it again. The answer is Loaded.

    Args:
        number: id of this command, unique within the run.
        asleep: true frees the memory.
    """

    number: int
    asleep: bool


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """Message to the engine: sample one action.

    Args:
        most: maximum number of new tokens.
        top_k: 0 disables top-k.
        stop_ids: tokens that end the action. The stop token is the action's last token.
        alternatives: number of likeliest tokens to report for each token.
        tells: whether to stream each token as soon as it is sampled.
        grammar: kind and text of the grammar (:class:`marft.common.marks.Grammar`); [] for none.
    """

    number: int
    policy: str
    prompt: Ids  # [P]
    temperature: float
    most: int
    top_p: float
    top_k: int
    seed: int
    stop_ids: list[int]
    alternatives: int = 0
    tells: bool = False
    grammar: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """Message from the engine: new tokens for an action.

    The last message of an action also contains the grammar masks for all its positions
    (:class:`marft.common.marks.Masks`).
    """

    number: int
    tokens: Ids  # [T]
    log_probs: Numbers  # [T], at the sampling temperature; at temperature 1 for a greedy sample
    finish: str  # "stop" or "length"; "": more tokens follow
    lowest: int
    highest: int
    top_ids: Ids = field(default_factory=lambda: NO_IDS)  # [T, alternatives]
    top_log_probs: Numbers = field(default_factory=lambda: NO_NUMBERS)  # [T, alternatives]
    mask_at: Ids = field(default_factory=lambda: NO_PLACES)  # [M]
    mask_which: Ids = field(default_factory=lambda: NO_PLACES)  # [M]
    mask_table: Bits = field(default_factory=lambda: NO_BITS)  # [masks, bytes]
    forced: Ids = field(default_factory=lambda: NO_PLACES)  # positions where the grammar allowed exactly one token

    def __post_init__(self) -> None:
        if self.tokens.ndim != 1 or self.tokens.shape != self.log_probs.shape:
            raise ValueError(f"tokens of shape {self.tokens.shape} and log-probs of {self.log_probs.shape}")


@dataclass(frozen=True, slots=True, eq=False)
class Weigh:
    """Message to the engine: score continuations of a prompt."""

    number: int
    policy: str
    prompt: Ids  # [P]
    options: Ids  # [sum of sizes], concatenated options
    sizes: Ids  # [A]
    temperature: float


@dataclass(frozen=True, slots=True, eq=False)
class Weighed:
    """Message from the engine: scores for the options."""

    number: int
    log_probs: Numbers  # [A], one log-probability per option
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True, eq=False)
class Forget:
    """Message to the engine: cancel a request."""

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """Message from the engine: the request failed, and its episode cannot be scored."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Alive:
    """Message from the engine at regular intervals: the engine works, even without results yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """Message from the engine: refusal of a command with a permanent failure.

    The command would also fail after a restart.

    Args:
        number: id of the request; −1 if the message does not belong to a request.
    """

    number: int
    reason: str


TO_ENGINE = (Open, Load, Rest, Ask, Weigh, Forget)
FROM_ENGINE = (Ready, Loaded, Said, Weighed, Alive, Failed, Refused)

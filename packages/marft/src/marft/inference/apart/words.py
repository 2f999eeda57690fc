"""What a run and an engine apart from it say to each other. Read on both sides: nothing here needs more than numpy."""

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
BEAT_SECONDS = 5.0  # from one sign that an engine is at work to the next
NO_PLACES, NO_BITS = np.zeros(0, np.int32), np.zeros((0, 0), np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Open:
    """To the engine, first: the base that it samples from, and how.

    Args:
        model: a folder or an id of the hub.
        dtype: of weights and cache.
        context: tokens of prompt and action.
        rows: requests that are sampled together.
        adapters: that are there at once, at most.
        rank: the largest of theirs.
        seed: of what has none of its own.
        options: of the engine's own, by their names there.
        tokenizer: as JSON (of the library ``tokenizers``), to hold texts to grammars by; "": none is.
        end: the token that ends a turn.
        rests: it will be told to.
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
    """From the engine: it takes requests."""

    program: str  # its name and version
    llguidance: str = ""  # version of the one that holds texts to grammars; "": none does


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """To the engine: a policy is this from now on. What has been asked for before is sampled as it was.

    Args:
        number: of this load: none of the run's has another's.
        path: of an adapter in peft's format, or of a whole model; "": the base itself.
        whole: it is a whole model, in place of the base.
    """

    number: int
    policy: str
    version: int
    path: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """From the engine: it is, and so it rests or is awake."""

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Rest:
    """To the engine: give the memory of its device back, or take it again. Answered by Loaded.

    Args:
        number: of this: none of the run's has another's.
    """

    number: int
    asleep: bool


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """To the engine: sample one action.

    Args:
        top_k: 0 is off.
        stop_ids: tokens that end it, and are its last.
        alternatives: how many of the likeliest tokens are told beside each.
        tells: every token is told once it is sampled, not all of them at the end.
        grammar: kind and text of what it is held to (:class:`marft.common.marks.Grammar`); [] for none.
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
    """From the engine: tokens of an action, those that had not been told before; and with the last of them what a
    grammar allowed for at places of the whole action (:class:`marft.common.marks.Masks`)."""

    number: int
    tokens: Ids  # [T]
    log_probs: Numbers  # [T], at the sampling temperature; at 1 for a greedy sample
    finish: str  # "stop" or "length"; "": more is to come
    lowest: int
    highest: int
    top_ids: Ids = field(default_factory=lambda: NO_IDS)  # [T, alternatives]
    top_log_probs: Numbers = field(default_factory=lambda: NO_NUMBERS)  # [T, alternatives]
    mask_at: Ids = field(default_factory=lambda: NO_PLACES)  # [M]
    mask_which: Ids = field(default_factory=lambda: NO_PLACES)  # [M]
    mask_table: Bits = field(default_factory=lambda: NO_BITS)  # [masks, bytes]
    forced: Ids = field(default_factory=lambda: NO_PLACES)  # places where it allowed for one token alone

    def __post_init__(self) -> None:
        if self.tokens.ndim != 1 or self.tokens.shape != self.log_probs.shape:
            raise ValueError(f"tokens of shape {self.tokens.shape} and log-probs of {self.log_probs.shape}")


@dataclass(frozen=True, slots=True, eq=False)
class Weigh:
    """To the engine: how likely is each of these continuations?"""

    number: int
    policy: str
    prompt: Ids  # [P]
    options: Ids  # [sum of sizes], one after the other
    sizes: Ids  # [A]
    temperature: float


@dataclass(frozen=True, slots=True, eq=False)
class Weighed:
    """From the engine: as likely as this."""

    number: int
    log_probs: Numbers  # [A], of whole options
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True, eq=False)
class Forget:
    """To the engine: nobody waits for this any more."""

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """From the engine: what was asked for did not come about, and its episode cannot be scored."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Alive:
    """From the engine, now and then: it is at work, even where nothing is done yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """From the engine: it cannot do this, and could not if it were started again.

    Args:
        number: of the request; −1 where it was none.
    """

    number: int
    reason: str


TO_ENGINE = (Open, Load, Rest, Ask, Weigh, Forget)
FROM_ENGINE = (Ready, Loaded, Said, Weighed, Alive, Failed, Refused)

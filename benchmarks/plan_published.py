"""Compare the seconds that ``marft plan`` predicts with published measurements of other frameworks.

    python benchmarks/plan_published.py     # writes results/plan_published.md; computes for a second

A row is a phase of a step, as its source measured it: model, cards, batch, lengths, seconds. Three numbers of
:class:`Reached` (``products``, ``intensity``, ``eager``) are fitted to some rows; all others are held out. A row's note
names what its source leaves open. In full training, all sources compute weights in bfloat16, which MARFT does not do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import machine

from marft.models.device_specs import DEVICE_SPECS
from marft.models.model_sizes import COMMON_MODELS, forward_flops
from marft_lab.planning.timing import Efficiencies, EngineSpeed, training_operations
from marft_lab.planning.workload import Lengths, PolicyWorkload

PRIME = "prime-rl, benchmarks/baselines, commit 559b447"
VERL_7B = "verl-data, gsm8k/qwen2-7b-fsdp2.log, step 51"
VERL_LORA = "verl-data, gsm8k/Qwen2.5-7B-…-lorarank32-score0.934.log, steps 61 to 63"
TRL_MINI = "philschmid.de/mini-deepseek-r1, its notebook (TRL 0.14)"
TRL_NOTEBOOK = "TRL, examples/notebooks/grpo_trl_lora_qlora.ipynb, its table"
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Reached(Efficiencies):
    """Efficiencies of a plan, and the speed of other engines without CUDA graphs."""

    eager: float = 1.17e-3  # minimum seconds per layer of a forward pass; fitted


@dataclass(frozen=True, slots=True)
class Row:
    """A published figure and its prediction."""

    source: str
    what: str
    seconds: float  # published
    predict: Callable[[Reached], float]
    fitted: bool = False
    note: str = ""


def policy(prompt: float, action: float, rank: int) -> PolicyWorkload:
    lengths = Lengths(prompt, action, action)
    return PolicyWorkload("p", "base", "lora" if rank else "full", rank, ALL if rank else (), 1, lengths, True)


def update(
    model: str, card: str, gpus: int, rows: float, lengths: tuple[float, float], rank: int = 0, recomputes: bool = True
) -> Callable[[Reached], float]:
    """Predict forward and backward of ``rows`` rows, divided among GPUs."""
    shape, on = COMMON_MODELS[model], DEVICE_SPECS[card]
    one = policy(*lengths, rank)
    operations = rows * sum(lengths) * training_operations(shape, one, recomputes, halves=False) / gpus
    return lambda reached: operations / reached.rate(on.flops, on.bandwidth)


def scoring(model: str, card: str, gpus: int, rows: float, lengths: tuple[float, float]) -> Callable[[Reached], float]:
    """Predict a forward pass."""
    shape, on = COMMON_MODELS[model], DEVICE_SPECS[card]
    operations = rows * sum(lengths) * forward_flops(shape, sum(lengths), lengths[1] / sum(lengths)) / gpus
    return lambda reached: operations / reached.rate(on.flops, on.bandwidth)


def writing(
    model: str, card: str, rows: float, lengths: tuple[float, float, float], *, group: int = 1, turns: float = 1.0,
    eager: bool = True,
) -> Callable[[Reached], float]:  # fmt: skip
    """Predict ``turns`` times sampling ``rows`` rows on an engine of ``group`` cards, prompts included."""
    shape, on = COMMON_MODELS[model], DEVICE_SPECS[card]
    prompt, action, longest = lengths

    def seconds(reached: Reached) -> float:
        engine = EngineSpeed(
            shape, 2.0 * shape.parameters, 2.0 * shape.cache_elements(), on.flops * group, on.bandwidth * group,
            reached.eager if eager else reached.captured, reached.iteration,
        )  # fmt: skip
        read = rows * prompt * forward_flops(shape, prompt) / reached.rate(engine.rate, engine.bandwidth)
        full = action * engine.step(rows, prompt + action / 2, reached)
        return turns * (read + full + (longest - action) * engine.step(1.0, prompt + longest, reached))

    return seconds


def trained(
    kind: str, model: str, card: str, gpus: int, length: int, throughput: float, *, fitted: bool = False
) -> Row:
    """Return a row of prime-rl's trainer on packed sequences, with gradient checkpointing.

    ``throughput`` is in tokens per second of all GPUs.
    """
    rank = 16 if "LoRA" in kind else 0
    return Row(
        PRIME, f"{kind}, {model}, {gpus} × {card}, {length:,} tokens a GPU", length * gpus / throughput,
        update(model, card, gpus, gpus, (0.0, length), rank), fitted,
    )  # fmt: skip


VERL_LENGTHS, LORA_LENGTHS = (93.0, 150.6), (102.2, 270.1)
OFFLOAD = "parameters offloaded to the host; the card is known from its MFU alone"
H20 = "the card is known from its MFU alone"
LIMITS = "lengths are not said: taken at their limits, 256 + 1,024"
HUGGING_FACE = "transformers' own generate; prompts are not said: 200 taken"

ROWS = [
    trained("LoRA", "qwen3-4b", "h100", 1, 16_384, 6229, fitted=True),
    trained("LoRA", "qwen3-4b", "h100", 8, 16_384, 48_719, fitted=True),
    trained("SFT, whole", "qwen3-4b", "h100", 8, 16_384, 49_717, fitted=True),
    trained("LoRA", "qwen3-4b", "h100", 1, 65_536, 4164),
    trained("LoRA", "qwen3-4b", "h100", 8, 65_536, 32_803),
    trained("RL, whole", "qwen3-4b", "h100", 8, 16_384, 26_026),
    trained("RL, whole", "qwen3-4b", "h100", 8, 65_536, 28_966),
    trained("LoRA", "qwen3-4b", "h200", 8, 16_384, 52_379),
    trained("LoRA", "qwen3-4b", "h200", 8, 65_536, 33_430),
    trained("SFT, whole", "qwen3-4b", "h200", 8, 16_384, 53_142),
    trained("LoRA", "qwen3-4b", "b200", 8, 16_384, 46_084),
    trained("SFT, whole", "qwen3-4b", "b200", 8, 16_384, 68_356),
    trained("LoRA", "qwen3-0.6b", "h100", 1, 16_384, 13_342),
    trained("LoRA", "qwen3-0.6b", "h100", 1, 65_536, 9967),
    trained("SFT, whole", "qwen3-0.6b", "h100", 1, 16_384, 25_486),
    Row(VERL_7B, "GRPO update, Qwen2-7B, 8 × h20, 5,120 rows", 63.2,
        update("qwen2.5-7b", "h20", 8, 5120, VERL_LENGTHS), True, H20),
    Row(VERL_7B, "scores before the update", 21.2, scoring("qwen2.5-7b", "h20", 8, 5120, VERL_LENGTHS), note=H20),
    Row(VERL_7B, "scores of the reference", 20.7, scoring("qwen2.5-7b", "h20", 8, 5120, VERL_LENGTHS), note=H20),
    Row(VERL_7B, "generation, 4 engines of 2", 36.5,
        writing("qwen2.5-7b", "h20", 1280, (*VERL_LENGTHS, 1024.0), group=2), note=H20),
    Row(VERL_LORA, "generation, Qwen2.5-7B, 4 engines of 2 × h100, eager, 320 rows", 24.8,
        writing("qwen2.5-7b", "h100", 80, (*LORA_LENGTHS, 706.0), group=2), True, OFFLOAD),
    Row(VERL_LORA, "GRPO update, LoRA, 8 × h100, 320 rows", 7.1,
        update("qwen2.5-7b", "h100", 8, 320, LORA_LENGTHS, 32), note=OFFLOAD),
    Row(VERL_LORA, "scores before the update", 2.3, scoring("qwen2.5-7b", "h100", 8, 320, LORA_LENGTHS), note=OFFLOAD),
    Row(VERL_LORA, "scores of the reference", 1.0, scoring("qwen2.5-7b", "h100", 8, 320, LORA_LENGTHS), note=OFFLOAD),
    Row(TRL_MINI, "GRPO step, Qwen2.5-3B whole, 3 × h100 learn, 1 writes 8 times 24 rows", 48.0, lambda reached: (
        writing("qwen2.5-3b", "h100", 24, (256.0, 1024.0, 1024.0), turns=8, eager=False)(reached)
        + update("qwen2.5-3b", "h100", 3, 192, (256.0, 1024.0))(reached)
        + 2 * scoring("qwen2.5-3b", "h100", 3, 192, (256.0, 1024.0))(reached)
    ), note=LIMITS),
    Row(TRL_NOTEBOOK, "GRPO step, Qwen2-7B whole, 1 × a100-80, 8 rows of 256", 1 / 0.06, lambda reached: (
        writing("qwen2.5-7b", "a100-80", 8, (200.0, 256.0, 256.0))(reached)
        + update("qwen2.5-7b", "a100-80", 1, 8, (200.0, 256.0), recomputes=False)(reached)
    ), note=HUGGING_FACE),
]  # fmt: skip


def fit(rows: Sequence[Row], start: Reached) -> Reached:
    """Fit the numbers to the fitted rows, one at a time on a grid. The error is the mean distance of logarithms."""
    found = start
    for _ in range(3):
        for name, grid in (
            ("intensity", [float(i) for i in range(40, 400, 2)]),
            ("products", [i / 100 for i in range(50, 101)]),
            ("eager", [i / 1e5 for i in range(2, 200)]),
        ):
            tried = [replace(found, **{name: value}) for value in grid]
            found = min(
                tried, key=lambda one: sum(abs(math.log(row.predict(one) / row.seconds)) for row in rows if row.fitted)
            )
    return found


def _missed(rows: Sequence[Row], reached: Reached) -> float:
    return sum(abs(math.log(row.predict(reached) / row.seconds)) for row in rows if row.fitted)


def table(reached: Reached) -> str:
    lines = [
        "| source | what | published | predicted | error | | note |",
        "| --- | --- | ---: | ---: | ---: | --- | --- |",
    ]
    for row in ROWS:
        seconds = row.predict(reached)
        how = "fitted" if row.fitted else "held out"
        lines.append(
            f"| {row.source} | {row.what} | {row.seconds:,.2f} s | {seconds:,.2f} s | "
            f"{seconds / row.seconds - 1:+.0%} | {how} | {row.note} |"
        )
    return "\n".join(lines)


def summary(reached: Reached) -> str:
    """Return how far fitted and held-out rows are off, as factors."""
    words = []
    for name, fitted in (("fitted", True), ("held out", False)):
        mine = [row for row in ROWS if row.fitted == fitted]
        factors = sorted(math.exp(abs(math.log(row.predict(reached) / row.seconds))) for row in mine)
        words.append(
            f"{name}: {len(factors)} rows, half of them within a factor of {factors[len(factors) // 2]:.2f}, "
            f"all within {factors[-1]:.2f}"
        )
    return "; ".join(words)


def main() -> None:
    fitted = fit(ROWS, Reached())
    print(fitted)
    reached = Reached()
    path = machine.save("plan_published", {"fitted": str(fitted), "rows": [
        {
            "source": r.source, "what": r.what, "published": r.seconds, "predicted": r.predict(reached),
            "fitted": r.fitted,
        }
        for r in ROWS
    ]})  # fmt: skip
    text = f"{table(reached)}\n\nOf {summary(reached)}.\n"
    path.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()

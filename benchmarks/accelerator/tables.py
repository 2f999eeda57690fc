"""The results of ``gpu.py`` as Markdown. Needs the standard library alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Results = Mapping[str, Mapping[str, Any]]


def table(results: Results, demo: Mapping[str, Any]) -> str:
    """Return the tables of all finished stages.

    Args:
        results: results of the stages, by name.
        demo: comparison of the demo with a CPU.
    """
    lines = [*_machine(results.get("machine", {})), "", *_stages(results), *_tests(results.get("tests", {}))]
    lines += [*_demo(results, demo), *_parity(results.get("parity", {})), *_speed(results.get("speed", {}))]
    lines += [*_launches(results.get("launches", {})), *_speed(results.get("four-bits", {}), " on a base in 4 bits")]
    return "\n".join([*lines, *_errors(results)]) + "\n"


def _machine(found: Mapping[str, Any]) -> Iterator[str]:
    about, rates = found.get("machine", {}), found.get("rates", {})
    versions = ", ".join(f"{name} {version}" for name, version in found.get("versions", {}).items())
    device, processor = about.get("device", "unknown"), about.get("processor", "unknown")
    yield f"{device}, {processor}, {about.get('cores')} cores; {versions}."
    if "bfloat16_flops" in rates:
        yield ""
        yield (
            f"Reached: {rates['bfloat16_flops'] / 1e12:,.0f} TFLOP/s in bfloat16, "
            f"{rates['float32_flops'] / 1e12:,.0f} in float32, {rates['copy_bytes_per_second'] / 1e12:.2f} TB/s of "
            f"copies, {rates['launch_seconds'] * 1e6:.1f} µs per launch."
        )


def _stages(results: Results) -> Iterator[str]:
    yield from ("| stage | outcome | seconds |", "| --- | --- | ---: |")
    for name, found in results.items():
        yield f"| {name} | {found.get('status')} | {found.get('wall_seconds', '')} |"


def _tests(found: Mapping[str, Any]) -> Iterator[str]:
    if "passed" in found:
        yield from ("", f"Tests: {found['passed']} passed.", *(f"- {line}" for line in found["lines"]))


def _demo(results: Results, compared: Mapping[str, Any]) -> Iterator[str]:
    rows = [found for name, found in results.items() if name.startswith("demo-") and "seconds" in found]
    if not rows:
        return
    yield from ("", "| demo, seed | steps | held-out success | seconds of training |", "| --- | ---: | ---: | ---: |")
    for row in rows:
        success = f"{row['success']:.1%}" if "success" in row else ""
        yield f"| {row['seed']} | {row['steps']} | {success} | {row['seconds']:.0f} |"
    if compared:
        (low, high), place = compared["interval"], "inside" if compared["inside"] else "OUTSIDE"
        yield ""
        yield (
            f"Mean {compared['mean']:.1%}, {place} the interval that a CPU's runs predict for {compared['seeds']} "
            f"seeds ({low:.1%} to {high:.1%})."
        )


def _parity(found: Mapping[str, Any]) -> Iterator[str]:
    rows = [(dtype, found[dtype]) for dtype in ("float32", "bfloat16") if "log_probs_max" in found.get(dtype, {})]
    if rows:
        yield ""
        yield "| SmolLM2's shape, against a CPU in float32 | log-probs, max | mean | gradients | engine - learner |"
        yield "| --- | ---: | ---: | ---: | ---: |"
    for dtype, row in rows:
        engine = row.get("engine_and_learner_max", float("nan"))
        yield (f"| {dtype} | {row['log_probs_max']:.1e} | {row['log_probs_mean']:.1e} | {row['gradients']:.1e} "
               f"| {engine:.1e} |")  # fmt: skip


def _speed(found: Mapping[str, Any], title: str = "") -> Iterator[str]:
    decoded = [row for name, row in found.items() if name.startswith("decode_") and "rows" in row]
    if decoded:
        yield from ("", "| decoding, rows | | milliseconds per step | tokens/s |", "| ---: | --- | ---: | ---: |")
    for row in decoded:
        speed = f"{1e3 * row['seconds_per_step']:.2f} | {row['tokens_per_second']:,.0f}"
        yield f"| {row['rows']} | {row.get('mode', '')} | {speed} |"
    step, plan = found.get("step", {}), found.get("plan", {})
    if "sampling_seconds" not in step:
        return
    yield from ("", f"A step{title} of {step['episodes']} episodes, micro-batches of {step['micro_batch']} tokens:", "",
                f"| | measured | marft plan ({plan.get('card', 'none')}) |", "| --- | ---: | ---: |")  # fmt: skip
    for name in ("sampling_seconds", "learning_seconds"):
        yield f"| {name.replace('_', ' ')} | {step[name]:.2f} | {plan.get(name, float('nan')):.2f} |"
    peak = step.get("device/peak_memory")
    yield f"| peak memory, GB | {'' if peak is None else f'{peak / 1e9:.1f}'} | {plan.get('bytes', 0) / 1e9:.1f} |"
    yield f"| sampled tokens/s | {step['sampled_tokens_per_second']:,.0f} | |"
    yield f"| learned tokens/s | {step['learned_tokens_per_second']:,.0f} | |"
    if "learner/mfu" in step:
        yield f"| model FLOPs utilization | {step['learner/mfu']:.1%} | |"


def _launches(found: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (name, found[name])
        for name in ("decode_eager", "decode_graphs", "learn")
        if "busy_share" in found.get(name, {})
    ]
    if rows:
        yield from ("", "| step | kernels | milliseconds | GPU busy |", "| --- | ---: | ---: | ---: |")
    for name, row in rows:
        count = row.get("kernels", row.get("operations", 0))
        yield f"| {name} | {count:,.0f} | {1e3 * row['seconds']:.1f} | {row['busy_share']:.0%} |"


def _errors(results: Results) -> Iterator[str]:
    for name, found in results.items():
        for part, value in found.items():
            if isinstance(value, Mapping) and "error" in value:
                yield from ("", f"{name}, {part}: {value['error']}")
        if "output" in found:
            yield from ("", f"{name}:", "", "```text", *found["output"].splitlines()[-15:], "```")

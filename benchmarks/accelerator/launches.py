"""Kernels of a decoding step and of a learning step: number, seconds, and the share of time the GPU works."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from accelerator.speed import decoding, graphs_of, synchronize, team_of
from accelerator.stage import Setting
from accelerator.team import opened, play
from marft.config.interfaces.schedule import Progress
from marft.trainer.learner import Learner

DECODE_STEPS, EPISODES = 4, 8


def count_launches(setting: Setting) -> None:
    """Profile decoding steps of 64 rows, and a learning step of a few episodes; save both."""
    team = team_of(setting)
    run = team.recipe(team.checkpoint(setting), setting.torch_device)
    with opened(run, team.sizes.vocab_size) as rollouts:
        prompt, steps = 32 if setting.small else 512, 2 * DECODE_STEPS + 2
        for mode, graphs in graphs_of(setting).items():
            with setting.part(f"decode_{mode}"), decoding(rollouts.models, 64, prompt, steps, graphs()) as step:
                step()
                work = partial(_repeat, step, DECODE_STEPS)
                setting.save(**{f"decode_{mode}": profiled(work, DECODE_STEPS, setting.device)})
        with setting.part("learn"):
            learner = Learner(run, rollouts.models)
            episodes = play(rollouts, 0, 2 if setting.small else EPISODES)
            learner.learn(episodes, Progress(0, 0))
            setting.save(learn=profiled(lambda: learner.learn(episodes, Progress(1, 0)), 1, setting.device))


def _repeat(step: Callable[[], object], times: int) -> None:
    for _ in range(times):
        step()


def profiled(work: Callable[[], object], steps: int, device: str) -> dict[str, Any]:
    """Run ``work`` without and with the profiler; return numbers per step.

    The busy share is the time in which a kernel or a copy runs, over the seconds without the profiler. Without a GPU,
    operations are counted in place of kernels.
    """
    synchronize()
    began = time.perf_counter()
    work()
    synchronize()
    seconds = time.perf_counter() - began
    on_gpu = device == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        work()
        synchronize()
    events = [
        event for event in profiler.events() or ()
        if (event.device_type == DeviceType.CUDA if on_gpu else event.cpu_parent is None)
    ]  # fmt: skip
    names, spent = Counter[str](), Counter[str]()
    for event in events:
        names[event.name] += 1
        spent[event.name] += event.time_range.end - event.time_range.start
    busy = covered((event.time_range.start, event.time_range.end) for event in events) / 1e6
    return {
        "kernels" if on_gpu else "operations": names.total() / steps, "seconds": seconds / steps,
        "busy_seconds": busy / steps, "busy_share": busy / seconds,
        "longest": [[name[:100], names[name] / steps, spent[name] / 1e6 / steps] for name, _ in spent.most_common(12)],
    }  # fmt: skip


def covered(ranges: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of ranges.

    >>> covered([(0, 2), (1, 3), (5, 6)])
    4.0
    """
    total, end = 0.0, float("-inf")
    for start, stop in sorted(ranges):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total

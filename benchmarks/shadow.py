"""Measure the verdicts of `marft shadow` on teams that are not better, and its effect on the latency of `marft serve`.

    python benchmarks/shadow.py                        # 1,000 simulations of each case: a minute
    python benchmarks/shadow.py --latency --run RUN    # p50 and p99 with and without a shadow, in turns: half an hour

The functions of `marft shadow` judge simulated sessions, after every one of them. A null is a team whose mean
difference from the served one is 0; each null has another shape. `fixed` is the promotion rate of a t-test at 5 %
that is checked as often.

With --latency, requests come in sequence. Rounds with and without a shadow alternate, on a server each. In rounds
without, the other server's shadow is stopped. The interval is that of the ratio of quantiles, from a bootstrap over
rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from marft.envs.tasks import read_tasks
from marft.evaluation.intervals import wilson_interval
from marft.runs.run_folder import RunFolder
from marft_lab.anytime_test import BET_FRACTIONS, log_capital, log_factors
from marft_lab.shadow.settings import ShadowSettings

RESULTS = Path(__file__).parent / "results"
Floats = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, int], Floats]  # teams, sessions → differences, [teams, sessions]


def solved(served: float, shadow: float) -> Draw:
    """Return a draw in which both teams solve sessions independently."""
    return lambda g, teams, n: g.binomial(1, shadow, (teams, n)) - g.binomial(1, served, (teams, n)).astype(float)


def rarely(often: float, up: float) -> Draw:
    """Return a draw in which the teams differ in few sessions. The shadow is better in a share ``up`` of those."""

    def draw(g: np.random.Generator, teams: int, n: int) -> Floats:
        differ = g.random((teams, n)) < often
        return np.where(differ, np.where(g.random((teams, n)) < up, 1.0, -1.0), 0.0)

    return draw


def skewed(g: np.random.Generator, teams: int, n: int) -> Floats:
    """Draw many small gains and a few whole losses, which add up to 0."""
    return np.where(g.random((teams, n)) < 1 / 21, -1.0, 0.05)


def graded(g: np.random.Generator, teams: int, n: int) -> Floats:
    """Draw scores of any size, with the same distribution in both teams."""
    found: Floats = g.beta(2, 1, (teams, n)) - g.beta(2, 1, (teams, n))
    return found


def changing(g: np.random.Generator, teams: int, n: int) -> Floats:
    """Draw periods of easy and of hard sessions. The spread of scores depends on the previous session."""
    found, before = np.empty((teams, n)), np.zeros(teams)
    for at in range(n):
        width = np.where(before > 0, 1.0, 0.1) * (0.2 + 0.8 * ((at // 50) % 2))
        found[:, at] = before = width * g.choice([-1.0, 1.0], teams)
    return found


NULLS: dict[str, Draw] = {
    "both solve 70 %": solved(0.7, 0.7),
    "both solve 98 %": solved(0.98, 0.98),
    "differ in 2 % of sessions": rarely(0.02, 0.5),
    "small gains, rare whole losses": skewed,
    "scores of any size": graded,
    "spread follows what came before": changing,
}
EFFECTS: dict[str, Draw] = {
    "solves 72 %, served 70 %": solved(0.7, 0.72),
    "solves 75 %, served 70 %": solved(0.7, 0.75),
    "solves 80 %, served 70 %": solved(0.7, 0.8),
    "solves 90 %, served 70 %": solved(0.7, 0.9),
    "differs in 5 %, better in 4 of 5": rarely(0.05, 0.8),
    "solves 65 %, served 70 %": solved(0.7, 0.65),
    "solves 50 %, served 70 %": solved(0.7, 0.5),
}


def judged(differences: Floats, settings: ShadowSettings) -> tuple[Floats, Floats]:
    """Return after how many sessions each team is promoted, and stopped.

    Only the first verdict counts; infinity means never.
    """
    teams, sessions = differences.shape
    width = settings.max_score - settings.min_score
    limit = (1 - settings.margin / width) / 2
    up, down = np.zeros((teams, len(BET_FRACTIONS))), np.zeros((teams, len(BET_FRACTIONS)))
    most_up, most_down = np.zeros(teams), np.zeros(teams)
    at = np.full((2, teams), math.inf)
    for count in range(1, sessions + 1):
        x = (differences[:, count - 1] / width + 1) / 2
        up += log_factors(x, limit)
        down += log_factors(1 - x, 1 - limit)
        np.maximum(most_up, log_capital(up), out=most_up)
        np.maximum(most_down, log_capital(down), out=most_down)
        if count < settings.min_sessions:
            continue
        open_ = np.isinf(at).all(0)
        stopped = open_ & (most_down >= math.log(1 / settings.false_stops))
        at[1, stopped] = count
        at[0, open_ & ~stopped & (most_up >= math.log(1 / settings.false_promotions))] = count
    return at[0], at[1]


def fixed(differences: Floats, least: int) -> float:
    """Return the share that a one-sided t-test at 5 % promotes if it is checked after every session."""
    count = np.arange(1, differences.shape[1] + 1)
    sums, squares = differences.cumsum(1), (differences**2).cumsum(1)
    variance = (squares - sums**2 / count) / np.maximum(count - 1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = sums / np.sqrt(np.maximum(variance, 1e-300) * count)
    return float((t[:, least - 1 :] > 1.645).any(1).mean())


def simulated(teams: int, sessions: int, seed: int) -> list[dict[str, Any]]:
    """Return a row per case."""
    settings, rows = ShadowSettings(), []
    for name, draw in {**NULLS, **EFFECTS}.items():
        differences = draw(np.random.default_rng(seed), teams, sessions)
        promoted, stopped = judged(differences, settings)
        at = np.minimum(promoted, stopped)
        rows.append({
            "case": name, "null": name in NULLS, "teams": teams, "sessions": sessions,
            "mean": float(differences.mean()), "promoted": float(np.isfinite(promoted).mean()),
            "promoted_interval": wilson_interval(int(np.isfinite(promoted).sum()), teams),
            "stopped": float(np.isfinite(stopped).mean()),
            "median": float(np.median(at)) if np.isfinite(np.median(at)) else None,
            "mean_sessions": float(np.minimum(at, sessions).mean()),
            "fixed": fixed(differences, settings.min_sessions),
        })  # fmt: skip
    return rows


@contextmanager
def server(run: Path, record: Path, shadow: Path | None, core: str, priority: str) -> Iterator[tuple[str, int]]:
    """Start ``marft serve``, and yield its address and process id."""
    words = ["serve", str(run), "--checkpoint", "last", "--port", "0", "--threads", "1", "--record", str(record)]
    words += (
        [
            "--shadow",
            str(shadow),
            "--shadow.max_sessions",
            "1000000",
            "--shadow.min_sessions",
            "1000000",
            "--shadow.priority",
            priority,
        ]
        if shadow
        else []
    )
    pinned = ["taskset", "-c", core] if core else []
    with subprocess.Popen(
        [*pinned, sys.executable, "-m", "marft", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        said = process.stdout.readline()
        found = re.match(r"(http://\S+?)/v1 answers", said)
        assert found, said
        try:
            yield found[1], process.pid
        finally:
            process.terminate()


def ask(url: str, question: str) -> float:
    """Send one request, and return its milliseconds."""
    import urllib.request

    body = json.dumps({"model": "team", "messages": [{"role": "user", "content": question}]}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json"})
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as answer:
        answer.read()
    return 1000 * (time.perf_counter() - began)


def latencies(
    run: Path, shadow: Path, rounds: int, requests: int, pause: float, core: str, priority: str
) -> dict[str, Any]:
    """Return the milliseconds of every request by round, with and without a shadow."""
    settings = RunFolder.open(run).relocated_settings()
    questions = [task.prompt for task in read_tasks(settings.environment, "test")]
    found: dict[str, list[list[float]]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as place:
        records = {name: Path(place) / name for name in found}
        with (
            server(run, records["without"], None, core, priority) as (plain, _),
            server(run, records["with"], shadow, core, priority) as (shadowed, process),
        ):
            urls = {"without": plain, "with": shadowed}
            for url in urls.values():
                for question in questions[:30]:
                    ask(url, question)
            time.sleep(40)  # until the requests are on disk and the shadow is working
            *_, beside = [pid for pid in below(process) if "marft_lab.shadow.process" in command_of(pid)]
            for number in range(rounds):
                for name in list(urls) if number % 2 else list(reversed(urls)):
                    os.kill(beside, signal.SIGCONT if name == "with" else signal.SIGSTOP)
                    took = []
                    for one in range(requests):
                        took.append(ask(urls[name], questions[(number * requests + one) % len(questions)]))
                        time.sleep(pause)
                    found[name].append(took)
        played = sum('"compared"' in line for line in lines_of(records["with"] / "shadow" / "sessions.jsonl"))
    return {"milliseconds": found, "played": played, "requests": requests, "pause": pause, "priority": priority}


def below(process: int) -> Iterator[int]:
    """Yield the descendants of a process."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        for child in map(int, (thread / "children").read_text(encoding="ascii").split()):
            yield child
            yield from below(child)


def command_of(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8", errors="replace")


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def compared(found: dict[str, list[list[float]]], share: float) -> dict[str, Any]:
    """Return a quantile with and without a shadow, their ratio, and its 95 % bootstrap interval over rounds."""
    generator, sides = np.random.default_rng(0), {name: np.array(rounds) for name, rounds in found.items()}
    value = {name: float(np.quantile(rounds, share)) for name, rounds in sides.items()}
    count = len(sides["with"])
    ratios = []
    for _ in range(2000):
        chosen = generator.integers(0, count, count)
        ratios.append(np.quantile(sides["with"][chosen], share) / np.quantile(sides["without"][chosen], share))
    low, high = np.quantile(ratios, [0.025, 0.975])
    ratio = value["with"] / value["without"]
    return {"quantile": share, **value, "ratio": ratio, "interval": [float(low), float(high)]}


def table_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "| shadow | mean difference | promoted | 95 % | stopped | median sessions to a verdict | mean sessions | "
        "a t-test of fixed size, peeked at |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        low, high = row["promoted_interval"]
        median = "" if row["median"] is None else f"{row['median']:.0f}"
        lines.append(
            f"| {row['case']} | {row['mean']:+.3f} | {row['promoted']:.1%} | {low:.1%} to {high:.1%} | "
            f"{row['stopped']:.1%} | {median} | {row['mean_sessions']:.0f} | {row['fixed']:.1%} |"
        )
    return lines


def write(name: str, table: dict[str, Any], lines: Sequence[str]) -> None:
    """Store results, with the machine they were measured on."""
    cores = len(os.sched_getaffinity(0))
    whole = {"machine": f"{platform.machine()}, {cores} cores", "python": platform.python_version(), **table}
    (RESULTS / f"{name}.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    (RESULTS / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teams", type=int, default=1000, help="simulations of each case")
    parser.add_argument("--sessions", type=int, default=2000, help="sessions per simulation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--latency", action="store_true", help="measure latency instead")
    parser.add_argument("--run", type=Path, help="run to serve")
    parser.add_argument("--shadow", type=Path, help="run of the shadow; default: the served run")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=50, help="requests per round")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds between requests, for the shadow to play")
    parser.add_argument("--priority", default="idle", help="priority of the shadow; use normal on a busy machine")
    parser.add_argument("--core", default="", help="core of both servers, for a busy machine")
    arguments = parser.parse_args()
    if not arguments.latency:
        rows = simulated(arguments.teams, arguments.sessions, arguments.seed)
        write("shadow", {"settings": ShadowSettings().model_dump(mode="json"), "rows": rows}, table_of(rows))
        return
    if arguments.run is None:
        parser.error("--latency needs a run to serve: --run")
    before = os.getloadavg()[0]
    found = latencies(
        arguments.run, arguments.shadow or arguments.run, arguments.rounds, arguments.requests, arguments.pause,
        arguments.core, arguments.priority,
    )  # fmt: skip
    rows = [compared(found["milliseconds"], share) for share in (0.5, 0.99)]
    lines = ["| quantile | without, ms | with a shadow, ms | ratio | 95 % |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| p{100 * row['quantile']:.0f} | {row['without']:.1f} | {row['with']:.1f} | {row['ratio']:.3f} | "
        f"{row['interval'][0]:.3f} to {row['interval'][1]:.3f} |"
        for row in rows
    ]
    count = arguments.rounds * arguments.requests
    lines += [
        "",
        f"{count} requests per side, {arguments.pause:g} s apart. Meanwhile, the shadow compared {found['played']} "
        f"sessions (priority {arguments.priority}). "
        f"Load average before and after: {before:.1f}, {os.getloadavg()[0]:.1f}.",
    ]
    write("shadow_latency", {**found, "compared": rows, "load": [before, os.getloadavg()[0]]}, lines)


if __name__ == "__main__":
    main()

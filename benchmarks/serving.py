"""Measure `marft serve` under many concurrent requests: the numbers answered and refused, and the latency.

    python benchmarks/serving.py [--requests 200] [--concurrency 32] [--queue 256] [--model team]

The demo's team answers over HTTP, sampled, from its own process on this machine. All requests arrive at the same time,
each on its own connection, without retries. The script prints a row and stores nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from marft.config import load_recipe
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train

QUESTION = "State the final answer to the following arithmetic problem: {} + {} - 12 ="


async def ask(host: str, port: int, model: str, number: int) -> tuple[int, float]:
    """Send one request; return its status and seconds. Status 0 means that no response came."""
    question = {"role": "user", "content": QUESTION.format(10 + number % 80, 45)}
    body = json.dumps({"model": model, "messages": [question]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n"
    began = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
        answer = await reader.read()
        writer.close()
        return int(answer.split(b" ", 2)[1]), time.perf_counter() - began
    except (OSError, IndexError):
        return 0, time.perf_counter() - began


async def crowd(host: str, port: int, model: str, requests: int) -> list[tuple[int, float]]:
    """Send all requests at once."""
    return list(await asyncio.gather(*(ask(host, port, model, number) for number in range(requests))))


def quantile(seconds: list[float], share: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200, help="number of concurrent requests")
    parser.add_argument("--concurrency", type=int, default=32, help="concurrency limit of the server")
    parser.add_argument("--queue", type=int, default=256, help="queue length of the server")
    parser.add_argument("--model", default="team")
    parser.add_argument("--run", type=Path, help="run to serve; default: the demo, trained for one step")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.run or one_step(Path(folder))
        words = ["--port", "0", "--concurrency", str(arguments.concurrency), "--queue", str(arguments.queue)]
        with subprocess.Popen(
            [sys.executable, "-m", "marft", "serve", str(path), *words], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout
            said = process.stdout.readline()
            found = re.match(r"http://([\d.]+):(\d+)/", said)
            assert found, said
            host, port = found[1], int(found[2])
            asyncio.run(crowd(host, port, arguments.model, 4))  # warm up what is created only once
            began = time.perf_counter()
            answers = asyncio.run(crowd(host, port, arguments.model, arguments.requests))
            took = time.perf_counter() - began
            process.terminate()
    statuses = Counter(status for status, _ in answers)
    good = [seconds for status, seconds in answers if status == 200]
    print("| requests | answered | refused (429) | lost | p50, s | p99, s | answers a second | load before |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    others = sum(statuses.values()) - statuses[200] - statuses[429]
    print(
        f"| {arguments.requests} | {statuses[200]} | {statuses[429]} | {others} | {quantile(good, 0.5):.2f} "
        f"| {quantile(good, 0.99):.2f} | {len(good) / took:.1f} | {os.getloadavg()[0]:.1f} |"
    )


def one_step(folder: Path) -> Path:
    """Train the demo for one step, and return the run's folder."""
    run = load_recipe("demo", ["--training.steps", "1", "--output", str(folder)])
    made = RunFolder.create(run)
    train(run, made)
    return made.path


if __name__ == "__main__":
    main()

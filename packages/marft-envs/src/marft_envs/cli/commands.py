"""Command definitions for environments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, JsonOption, command_group

app = command_group()


@app.command("check-env", context_settings=OVERRIDE_CONTEXT)
def check_env(
    context: typer.Context,
    environment: Annotated[str, typer.Argument(help="Its name, an import path, or a recipe that names it.")],
    num_tasks: Annotated[
        int, typer.Option(min=1, help="Training tasks that are played; one of each held-out split is, too.")
    ] = 4,
    max_steps: Annotated[int, typer.Option(min=1, help="Of an episode; a recipe says so itself.")] = 200,
    max_median_ms: Annotated[float, typer.Option(min=0.001, help="Of half of all calls: more is slow.")] = 100.0,
    max_call_ms: Annotated[float, typer.Option(min=0.001, help="Of any call: more is slow.")] = 1000.0,
    max_blocking_ms: Annotated[
        float, typer.Option(min=0.001, help="That a call may keep its thread without awaiting.")
    ] = 10.0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds after which a call is given up.")] = 20.0,
    max_observation_chars: Annotated[
        int, typer.Option(min=1, help="Characters that an agent may be shown at a time.")
    ] = 20_000,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Ask no fresh processes: quicker, and sees less.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check an environment for faults.

    The check loads the environment, plays it with several scripted players, and replays the episodes. Append
    settings of the environment as options: --lines 3. The exit status is 1 if a check fails.
    """
    from marft.cli import options, output
    from marft_envs.cli import env_check
    from marft_envs.env_check.target import Limits, find_keys

    limits = Limits(
        tasks=num_tasks,
        max_steps=max_steps,
        max_median_seconds=max_median_ms / 1000,
        max_call_seconds=max_call_ms / 1000,
        max_blocking_seconds=max_blocking_ms / 1000,
        call_timeout_seconds=timeout,
        max_observation_chars=max_observation_chars,
        use_processes=not in_process,
    )
    words = options.parse_overrides(context, Path(environment), find_keys(environment))
    if not env_check.check_environment(environment, words, limits, output.output_mode(False, as_json)):
        raise typer.Exit(1)

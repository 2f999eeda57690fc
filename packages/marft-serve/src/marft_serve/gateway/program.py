"""Organization in an external program that requests actions over a model API."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal
from urllib.parse import quote

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.agents import Agents
from marft.agents.loop_threads import LoopThread, OverdueError, RaisedError
from marft.agents.outcome import Outcome
from marft.agents.reading import RefusedError
from marft.agents.tasks import own_data
from marft.common.errors import EpisodeFailedError
from marft.common.satellites import install_command
from marft.common.types import JointAction, Observation, Task
from marft.config.agents import Strings
from marft.config.endpoint import names_server
from marft.config.folders import from_recipe
from marft.config.given import ImportPath
from marft.config.parts import OrganizationPart
from marft.config.plugins import import_path
from marft.config.settings import Count, CountOrNone, Filled, Positive
from marft_serve.gateway.client import Client, Clients
from marft_serve.gateway.masking import without
from marft_serve.gateway.solving import call, command

if TYPE_CHECKING:
    from marft_serve.gateway.server import Gateway
    from marft_serve.gateway.session import Session

PYTHON = ("python", "python3")


class Program(OrganizationPart):
    """External program that plays each step, with an OpenAI-compatible address for every agent.

    The program receives the task. Every request to an agent's address is an action of that agent.

    ::

        [team]
        organization = "program"
        call = "my_package.team:solve"        # solve(task, clients) → the answer; may be async or block

        [team]
        organization = "program"
        command = ["python", "team.py"]       # task as JSON on standard input, answer as the last printed line
        python = "/opt/their_team/bin/python" # interpreter of a separate environment
    """

    own_words: ClassVar[bool] = True
    own_timeout: ClassVar[bool] = True
    call: ImportPath = ""  # import path of a function of the task and the clients by role
    # or a command, with the task as JSON on standard input and the clients in environment variables
    command: Strings = ()
    python: str = ""  # interpreter for "python" in the command; "": unchanged
    # working directory of the command; "": the recipe's folder
    folder: Annotated[str, Field(validate_default=True, pattern=r"^[^\x00]*$")] = ""
    graded_by: Literal["environment", "program"] = "environment"  # source of the reward
    timeout_seconds: Positive = 600.0  # timeout for one run of the program, in seconds
    # Maximum idle time of a program without requests, in seconds. After it, requests of other episodes no longer wait
    # for this program, if requests are admitted in order.
    wait_seconds: Positive = 60.0
    tokens: CountOrNone = 0  # maximum number of sampled tokens per episode, over all agents; 0: no limit
    requests: CountOrNone = 0  # maximum number of requests per episode; 0: no limit
    host: Filled = "127.0.0.1"  # host that the gateway listens on; default: this machine only
    port: Annotated[int, Field(ge=0, le=65_535)] = 0  # port of the gateway; 0: any free port
    # public URL of the gateway, for programs in a container for example: "http://host.docker.internal:8123"; "": host
    # and port
    address: Annotated[str, Field(pattern=r"^(https?://[^\s/]+/?)?$")] = ""
    body_bytes: Count = 4_194_304  # maximum size of a request body, in bytes
    body_seconds: Positive = 30.0  # timeout for receiving a request body, in seconds

    @field_validator("call")
    @classmethod
    def _can_be_called(cls, path: str, info: ValidationInfo) -> str:
        if path and not callable(import_path(path, info.context)):
            raise PydanticCustomError("call", "{path} is no function", {"path": repr(path)})
        return path

    @field_validator("address")
    @classmethod
    def _can_be_reached(cls, address: str) -> str:
        if address and not names_server(address):
            raise PydanticCustomError("address", "must look like http://host:8123")
        return address

    @field_validator("folder")
    @classmethod
    def _in_the_recipe(cls, folder: str, info: ValidationInfo) -> str:
        return from_recipe(folder, info.context)

    @model_validator(mode="after")
    def _one_way_to_run(self) -> Program:
        if bool(self.call) == bool(self.command):
            raise ValueError("needs either a function to call, or a command")
        if self.call and self.python:
            raise ValueError("python does nothing for a function, which is called here; remove it, or use a command")
        if self.command and shutil.which(self.words[0], path=self._path()) is None:
            raise ValueError(f"there is no program {self.words[0]!r}")
        missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
        if missing:
            raise ValueError(f"the gateway needs packages that are not installed: {install_command('gateway')}")
        return self

    @property
    def words(self) -> tuple[str, ...]:
        """The command with the configured interpreter."""
        first, *rest = self.command
        return (self.python if self.python and first in PYTHON else first, *rest)

    @property
    def grades(self) -> bool:
        """True if the program returns the reward."""
        return self.graded_by == "program"

    def opened(self, task: Task, seed: int) -> Episode:  # noqa: ARG002  the program seeds itself
        """Return the program for an episode."""
        return Episode(self, task)

    def close(self) -> None:
        """Do nothing; each episode owns its program."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Play a single step in a separate episode."""
        episode = self.opened(Task("", observation.text), 0)
        try:
            return await episode.act(observation, agents)
        finally:
            episode.close()

    def gateway(self) -> Gateway:
        """Start the gateway, shared between episodes."""
        from marft_serve.gateway.http import Bounds  # needs an extra; reading a recipe does not
        from marft_serve.gateway.server import Gateway

        return Gateway(self.host, self.port, Bounds(self.body_bytes, self.body_seconds), self.address)

    def _path(self) -> str:
        return os.pathsep.join([os.environ.get("PATH", os.defpath), self.folder])


class Episode:
    """An episode's program: one gateway session, and a program run per step."""

    own_timeout = True

    def __init__(self, program: Program, task: Task) -> None:
        self.program, self.task, self.name = program, task, program.name
        self._gateway: Gateway | None = None
        self._session: Session | None = None
        self._address = ""

    def opened(self, task: Task, seed: int) -> Episode:
        """Return the program for another episode."""
        return self.program.opened(task, seed)

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run the program on an observation.

        Raises:
            EpisodeFailedError: the program raised, failed or timed out.
        """
        from marft_serve.gateway.session import Limits, Session

        program, outside = self.program, agents.outside()
        if self._session is None:
            self._gateway = outside.threads.kept("gateway", program.gateway)
            self._session = Session(Limits(program.tokens, program.requests, program.wait_seconds))
        assert self._gateway is not None, "the session came with it"
        self._gateway.leave(self._session)
        self._session.renew()
        self._address = self._gateway.open(self._session)
        thread, failed = outside.threads.acquire(), True
        self._session.begin(agents, observation)
        try:
            outcome = await self._run(thread, observation, self._clients(agents))
            failed = False
            return outcome
        except OverdueError as error:
            raise EpisodeFailedError("timed_out", f"the program took over {program.timeout_seconds:g} s") from error
        except RaisedError as error:
            raise EpisodeFailedError("failed", self._masked(f"the program raised {error}")) from error
        except RefusedError as error:
            raise EpisodeFailedError("failed", self._masked(f"the program {error}")) from error
        finally:
            with outside.external_wait():
                await self._session.end()
                await outside.threads.release(thread, suspect=failed)

    def close(self) -> None:
        """End the episode; the gateway rejects further requests."""
        if self._session is not None and self._gateway is not None:
            self._session.close()
            self._gateway.forget(self._session)

    async def _run(self, thread: LoopThread, observation: Observation, clients: Mapping[str, Client]) -> Outcome:
        program = self.program
        task = Task(self.task.id, observation.text, own_data(self.task.data) if program.grades else {})
        run = (
            partial(call, import_path(program.call), task, clients, program.grades)
            if program.call
            else partial(command, program.words, program.folder, task, clients, program.grades, self._masked)
        )
        return await thread.call_theirs(run, timeout=program.timeout_seconds, passing=RefusedError)

    def _clients(self, agents: Agents) -> Clients:
        return Clients({
            seat.role: Client(
                f"{self._address}/{quote(seat.role, safe='')}/v1", "none", seat.agent.policy,
                seat.agent.profile.instructions, f"{self._address}/waiting",
            )
            for seat in agents
        })  # fmt: skip

    def _masked(self, said: str) -> str:
        return without(self._session.secrets if self._session else (), said)

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

from marft.agents.agents import Outcome, TeamAgents
from marft.agents.environment_calls import RefusedError
from marft.agents.loop_threads import CallTimeoutError, LoopThread, UserCodeError
from marft.agents.task_copies import copy_data
from marft.common.errors import EpisodeFailedError, UserError
from marft.common.packages import install_command
from marft.common.types import JointAction, Observation, Task
from marft.config.agents import Strings
from marft.config.endpoint import is_server_url
from marft.config.interfaces.organization import Agents, Organization
from marft.config.paths import resolve_recipe_path
from marft.config.plugins import FunctionPath, import_object
from marft.config.settings import Count, NonEmptyString, NonNegativeCount, Positive
from marft_serve.gateway.client import WAITING, Client, Clients
from marft_serve.gateway.program_runner import call_function, mask_secrets, run_command

if TYPE_CHECKING:
    from marft_serve.gateway.app import Gateway
    from marft_serve.gateway.session import Session

PYTHON = ("python", "python3")


class Program(Organization):
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

    writes_prompts: ClassVar[bool] = True
    own_timeout: ClassVar[bool] = True
    call: FunctionPath = Field(default="", description="import path of a function of the task and the clients by role")
    command: Strings = Field(
        default=(),
        description=(
            "command instead of call; reads the task as JSON on standard input, and the clients from environment "
            "variables"
        ),
    )
    python: str = Field(default="", description='interpreter for "python" in the command; "": unchanged')
    folder: Annotated[str, Field(validate_default=True, pattern=r"^[^\x00]*$")] = Field(
        default="", description='working directory of the command; "": the recipe\'s folder'
    )
    graded_by: Literal["environment", "program"] = Field(default="environment", description="source of the reward")
    timeout_seconds: Positive = Field(default=600.0, description="timeout for one run of the program, in seconds")
    idle_timeout_seconds: Positive = Field(
        default=60.0,
        description=(
            "maximum time without requests, in seconds; then requests of other episodes no longer wait for this "
            "program, with in-order admission"
        ),
    )
    max_tokens: NonNegativeCount = Field(
        default=0, description="maximum number of sampled tokens per episode, summed over agents; 0: no limit"
    )
    max_requests: NonNegativeCount = Field(default=0, description="maximum number of requests per episode; 0: no limit")
    host: NonEmptyString = Field(
        default="127.0.0.1", description="host that the gateway listens on; default: this machine only"
    )
    port: Annotated[int, Field(ge=0, le=65_535)] = Field(default=0, description="port of the gateway; 0: any free port")
    public_url: Annotated[str, Field(pattern=r"^(https?://[^\s/]+/?)?$")] = Field(
        default="",
        description=(
            'public URL of the gateway, for programs in a container, such as "http://host.docker.internal:8123"; "": '
            "host and port"
        ),
    )
    max_body_bytes: Count = Field(default=4_194_304, description="maximum size of a request body, in bytes")
    body_timeout_seconds: Positive = Field(default=30.0, description="timeout for receiving a request body, in seconds")

    @field_validator("public_url")
    @classmethod
    def _check_address(cls, address: str) -> str:
        if address and not is_server_url(address):
            raise PydanticCustomError("address", "must look like http://host:8123")
        return address

    @field_validator("folder")
    @classmethod
    def _resolve_folder(cls, folder: str, info: ValidationInfo) -> str:
        return resolve_recipe_path(folder, info.context)

    @model_validator(mode="after")
    def _check_command(self) -> Program:
        if bool(self.call) == bool(self.command):
            raise UserError("needs either a function to call, or a command")
        if self.call and self.python:
            raise UserError("python does nothing for a function, which is called here; remove it, or use a command")
        if self.command and shutil.which(self.resolved_command[0], path=self._search_path()) is None:
            raise UserError(f"there is no program {self.resolved_command[0]!r}")
        missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
        if missing:
            raise UserError(f"the gateway needs packages that are not installed: {install_command('gateway')}")
        return self

    @property
    def resolved_command(self) -> tuple[str, ...]:
        """The command with the configured interpreter."""
        first, *arguments = self.command
        return (self.python if self.python and first in PYTHON else first, *arguments)

    @property
    def grades_answers(self) -> bool:
        """True if the program returns the reward."""
        return self.graded_by == "program"

    def open(self, task: Task, seed: int) -> ProgramEpisode:  # noqa: ARG002  the program seeds itself
        """Return the program for an episode."""
        return ProgramEpisode(self, task)

    def close(self) -> None:
        """Do nothing; each episode owns its program."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Play a single step in a separate episode."""
        episode = self.open(Task("", observation.text), 0)
        try:
            return await episode.act(observation, agents)
        finally:
            episode.close()

    def start_gateway(self) -> Gateway:
        """Start the gateway, shared between episodes."""
        from marft_serve.gateway.app import Gateway
        from marft_serve.gateway.http import BodyLimits  # needs an extra; reading a recipe does not

        return Gateway(
            self.host, self.port, BodyLimits(self.max_body_bytes, self.body_timeout_seconds), self.public_url
        )

    def _search_path(self) -> str:
        return os.pathsep.join([os.environ.get("PATH", os.defpath), self.folder])


class ProgramEpisode(Organization):
    """An episode's program: one gateway session, and a program run per step."""

    own_timeout: ClassVar[bool] = True

    _program: Program
    _task: Task
    _gateway: Gateway | None = None
    _session: Session | None = None
    _address: str = ""

    def __init__(self, program: Program, task: Task) -> None:
        super().__init__()
        self._program, self._task, self._name = program, task, program.name

    def open(self, task: Task, seed: int) -> ProgramEpisode:
        """Return the program for another episode."""
        return self._program.open(task, seed)

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run the program on an observation.

        Raises:
            EpisodeFailedError: the program raised, failed or timed out.
        """
        from marft_serve.gateway.session import Limits, Session

        assert isinstance(agents, TeamAgents)
        program, outside = self._program, agents.external_context()
        if self._session is None:
            self._gateway = outside.threads.get_shared("gateway", program.start_gateway)
            self._session = Session(Limits(program.max_tokens, program.max_requests, program.idle_timeout_seconds))
        assert self._gateway is not None, "the session came with it"
        self._gateway.end_step(self._session)
        self._session.renew_secret()
        self._address = self._gateway.open_session(self._session)
        thread, failed = outside.threads.acquire(), True
        self._session.begin_step(agents, observation)
        try:
            outcome = await self._run(thread, observation, self._build_clients(agents))
            failed = False
            return outcome
        except CallTimeoutError as error:
            raise EpisodeFailedError("timed_out", f"the program took over {program.timeout_seconds:g} s") from error
        except UserCodeError as error:
            raise EpisodeFailedError("failed", self._mask_secrets(f"the program raised {error}")) from error
        except RefusedError as error:
            raise EpisodeFailedError("failed", self._mask_secrets(f"the program {error}")) from error
        finally:
            with outside.external_wait():
                await self._session.end_step()
                await outside.threads.release(thread, failed=failed)

    def close(self) -> None:
        """End the episode; the gateway rejects further requests."""
        if self._session is not None and self._gateway is not None:
            self._session.close()
            self._gateway.remove_session(self._session)

    async def _run(self, thread: LoopThread, observation: Observation, clients: Mapping[str, Client]) -> Outcome:
        program = self._program
        task = Task(self._task.id, observation.text, copy_data(self._task.data) if program.grades_answers else {})
        run = (
            partial(call_function, import_object(program.call), task, clients, program.grades_answers)
            if program.call
            else partial(
                run_command,
                program.resolved_command,
                program.folder,
                task,
                clients,
                program.grades_answers,
                self._mask_secrets,
            )
        )
        return await thread.call_user_code(run, timeout=program.timeout_seconds, passthrough=RefusedError)

    def _build_clients(self, agents: TeamAgents) -> Clients:
        return Clients(
            {
                handle.role: Client(
                    f"{self._address}/{quote(handle.role, safe='')}/v1",
                    "none",
                    handle.agent.policy,
                    handle.profile.instructions,
                    f"{self._address}/{WAITING}",
                )
                for handle in agents
            }
        )

    def _mask_secrets(self, text: str) -> str:
        return mask_secrets(self._session.secrets if self._session else (), text)

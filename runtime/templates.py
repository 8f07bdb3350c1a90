"""What a worker is made of before it is anybody's: the same for all that start on one environment.

`supervisor.py` starts each attempt from a template, and `warm.py` starts workers from one ahead, so both make the same
sandbox; what belongs to one attempt (`cells.py`, its variables, its folder) is added by whoever starts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runtime import sandbox
from runtime.environments import Environment
from runtime.process import Command
from runtime.sandbox import SandboxSpec
from runtime.variables import BASE_VARIABLES

WORKER_START = Path(__file__).with_name("worker_start.py").read_text()


@dataclass(frozen=True, kw_only=True)
class Template:
    """The sandbox and the command of a worker; equal ones are interchangeable.

    `spec` has neither a uid nor a run folder, `command` no variable of a Function; `environment` is where the
    environment is on the host. `image` is the key of the image
    whose files it mounts, if any: whoever starts a worker holds a lease of it for as long as the worker lives.
    """

    spec: SandboxSpec
    command: Command
    environment: Path
    image: str | None = None


def worker_template(environment: Environment, scratch_bytes_max: int) -> Template:
    """What a worker on this environment is made of, whoever it will be for."""
    prefix = environment.interpreter.prefix
    interpreter = () if prefix.is_relative_to("/usr") else ((prefix, prefix),)
    python = sandbox.ENVIRONMENT / "bin" / "python"
    return Template(
        spec=SandboxSpec(
            uid=None,
            read_only=((environment.path, sandbox.ENVIRONMENT), *interpreter, *environment.mounts),
            scratch=environment.scratch,
            scratch_bytes_max=scratch_bytes_max,
        ),
        command=Command(
            python=python,
            arguments=(str(python), "-c", WORKER_START),
            environment=BASE_VARIABLES,
            directory=str(sandbox.WORKSPACE),
        ),
        environment=environment.path,
        image=environment.image,
    )

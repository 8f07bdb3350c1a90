"""The steps of an image, as commands that a build sandbox runs one after the other.

`COMMANDS` is the table: one row a kind of step, from the step's fields to what is run for it. A command that is given
the network reaches the package index and nothing else; all others reach nothing. Everything user-controlled is an
argument of a program, never a part of a shell line of ours, except in `run`, which is the user's own shell line.
Next: `image_builder.py` makes the sandboxes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from runtime import sandbox

UV = Path("/nodus/uv")
INPUTS = Path("/nodus/inputs")
CACHE = Path("/nodus/cache")
PROJECT = Path("/nodus/project")
CONSTRAINTS = INPUTS / "constraints.txt"
EXTRACT = INPUTS / "extract.py"
PYTHON = sandbox.ENVIRONMENT / "bin" / "python"

Fields = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class StepCommand:
    """One program to run: its arguments, whether it may ask the package index, and where it starts."""

    arguments: tuple[str, ...]
    network: bool = False
    directory: str | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step as its author wrote it; `number` counts from 1."""

    number: int
    kind: str
    fields: Any

    @property
    def label(self) -> str:
        """How the build log names it."""
        return f"step {self.number} ({self.kind})"


def steps_of(spec: Fields) -> list[Step]:
    """The steps of an Image's spec in their order."""
    told = [next(iter(step.items())) for step in spec.get("steps") or ()]
    return [Step(number=number, kind=kind, fields=fields) for number, (kind, fields) in enumerate(told, 1)]


def commands_of(step: Step) -> list[StepCommand]:
    """What is run for a step; a step that only sets variables runs nothing."""
    return list(COMMANDS[step.kind](step.fields))


def variables_of(steps: Sequence[Step]) -> dict[str, str]:
    """The variables that these steps set, a later one winning."""
    variables: dict[str, str] = {}
    for step in steps:
        if step.kind == "env":
            variables.update(step.fields)
    return variables


def directory_of(steps: Sequence[Step]) -> str | None:
    """The working directory after these steps, if they set one."""
    told = [str(step.fields) for step in steps if step.kind == "workdir"]
    return told[-1] if told else None


def tops_of(steps: Sequence[Step]) -> list[str]:
    """The top folders that the steps may fill: the workspace, and those they name."""
    places = [step.fields["dest"] for step in steps if step.kind == "copy"]
    places += [step.fields for step in steps if step.kind == "workdir"]
    return sorted({PurePosixPath(place).parts[1] for place in places} | {sandbox.WORKSPACE.name})


def blobs_of(steps: Sequence[Step]) -> list[str]:
    """The `sha256:` references of all blobs that the steps read, each once."""
    told = [step.fields["blob"] for step in steps if step.kind == "copy"]
    told += [step.fields["project"] for step in steps if step.kind == "uvSync"]
    return list(dict.fromkeys(told))


def blob_file(reference: str) -> Path:
    """Where a build finds the bytes of a blob."""
    return INPUTS / reference.removeprefix("sha256:")


def _install(fields: Fields) -> Iterator[StepCommand]:
    arguments = [str(UV), "pip", "install", "--python", str(PYTHON), "--compile-bytecode", "--link-mode", "copy"]
    arguments += ["--constraint", str(CONSTRAINTS)]
    if "indexURL" in fields:
        arguments += ["--default-index", fields["indexURL"]]
    for url in fields.get("extraIndexURLs") or ():
        arguments += ["--index", url]
    yield StepCommand(arguments=(*arguments, "--", *fields["packages"]), network=True)


def _sync(fields: Fields) -> Iterator[StepCommand]:
    yield _extract(fields["project"], str(PROJECT))
    # Inexact: the worker's own packages are in no project and must stay.
    arguments = [str(UV), "sync", "--project", str(PROJECT), "--inexact", "--no-editable", "--no-dev"]
    arguments += ["--compile-bytecode", "--link-mode", "copy"]
    if fields.get("frozen"):
        arguments.append("--frozen")
    yield StepCommand(arguments=tuple(arguments), network=True)


def _run(lines: Sequence[str]) -> Iterator[StepCommand]:
    for line in lines:
        yield StepCommand(arguments=("/bin/sh", "-c", line))


def _copy(fields: Fields) -> Iterator[StepCommand]:
    yield _extract(fields["blob"], fields["dest"])


def _workdir(directory: str) -> Iterator[StepCommand]:
    # init makes the folder it starts a command in.
    yield StepCommand(arguments=("/bin/true",), directory=directory)


def _env(_: Fields) -> Iterator[StepCommand]:
    return iter(())


def _extract(reference: str, destination: str) -> StepCommand:
    return StepCommand(
        arguments=(str(PYTHON), "-I", "-S", str(EXTRACT), str(blob_file(reference)), destination), directory="/"
    )


COMMANDS: Mapping[str, Callable[[Any], Iterator[StepCommand]]] = {
    "pipInstall": _install,
    "uvPipInstall": _install,
    "uvSync": _sync,
    "run": _run,
    "copy": _copy,
    "workdir": _workdir,
    "env": _env,
}
"""What each kind of step runs."""

"""The fields of a Function: what a user declares and what the server observes. `function.py` has its rules."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from controlplane.kinds.catalog import python_image, python_of
from controlplane.kinds.money import Cost, Estimate
from controlplane.kinds.placing import Placement, Recovery, Resources
from controlplane.kinds.references import (
    AbsolutePath,
    BlobReference,
    DottedName,
    Identifier,
    ImageReference,
    ObjectName,
    PythonVersion,
    Text,
)
from controlplane.kinds.workload import (
    ARGUMENTS_MAX,
    ENV_MAX,
    SECRETS_MAX,
    SIDECARS_MAX,
    VOLUMES_MAX,
    Argv,
    Env,
    InitCommand,
    Network,
    Secrets,
    Sidecars,
    Volumes,
)
from controlplane.machinery.conditions import Conditions
from controlplane.machinery.model import ApiModel
from controlplane.machinery.problems import FORBIDDEN, NOT_SUPPORTED, problem
from controlplane.machinery.quantities import Duration, Money, duration_between

WORKERS_MAX = 1_000
CONCURRENCY_MAX = 1_000
METHODS_MAX = 128
RETRIES_MAX = 10


class FunctionClass(ApiModel):
    """The class of a Function that was made with `@app.cls`."""

    name: DottedName = Field(description="Name of the class.")
    methods: list[Identifier] | None = Field(
        default=None, max_length=METHODS_MAX, description="Methods that calls may name."
    )


class FunctionCode(ApiModel):
    """What a worker imports and runs."""

    module: DottedName = Field(description="Import path of the module.")
    qualname: DottedName = Field(description="The function or class in the module.")
    blob: BlobReference | None = Field(
        default=None, description="A tar.gz of the source, shared by the App; absent when the image holds the code."
    )
    cls: FunctionClass | None = Field(default=None, description="Set when `qualname` is a class.")


class FunctionRetries(ApiModel):
    """How often a call is run again after the function raised, and how long it waits before each time."""

    max_retries: int = Field(default=0, ge=0, le=RETRIES_MAX, description="Runs after the first one.")
    backoff_coefficient: float = Field(default=2.0, ge=1, le=10, description="What each delay is multiplied with.")
    initial_delay: Annotated[Duration, *duration_between("0s", "24h")] = Field(
        default="1s", description="Wait before the first retry."
    )
    max_delay: Annotated[Duration, *duration_between("0s", "24h")] = Field(
        default="60s", description="Longest wait between retries."
    )


class FunctionScaling(ApiModel):
    """How many workers serve the Function and how busy each may be."""

    max_workers: int = Field(default=10, ge=1, le=WORKERS_MAX, description="Most workers at once.")
    min_workers: int = Field(
        default=0, ge=0, le=WORKERS_MAX, description="Workers kept without any call; they are charged too."
    )
    scaledown_window: Annotated[Duration, *duration_between("0s", "20m")] = Field(
        default="60s", description="How long a worker above the least number may be idle."
    )
    target_concurrency: int = Field(default=1, ge=1, le=CONCURRENCY_MAX, description="Calls a worker runs at once.")

    @field_validator("min_workers")
    @classmethod
    def _fits(cls, min_workers: int, info: ValidationInfo) -> int:
        max_workers = info.data.get("max_workers", WORKERS_MAX)
        if min_workers > max_workers:
            raise problem(f"must be less than or equal to `maxWorkers`, which is {max_workers}")
        return min_workers


class FunctionCluster(ApiModel):
    """A gang of machines that runs each call together."""

    size: int | None = Field(default=None, ge=2, description="Machines of a gang.")
    launcher: Literal["Plain"] | None = Field(default=None, description="How the ranks are started.")
    network: Literal["Colocated", "Regional", "Global"] | None = Field(
        default=None, description="How close together they are."
    )
    transport: Literal["Direct", "Auto"] | None = Field(default=None, description="How they reach each other.")


def _function_state(value: object) -> object:
    if value == "Cancelled":
        raise problem(
            'must be one of "Running", "Stopped": a Function is stopped, and only its calls are cancelled',
            NOT_SUPPORTED,
        )
    return value


class FunctionSpec(ApiModel):
    """What a user declares about a Function. All of it may change; `maxCostUSD` only upwards."""

    code: FunctionCode = Field(description="What the workers import.")
    python: PythonVersion = Field(description="Minor version of the interpreter, 3.10 to 3.13.")
    image: ImageReference | None = Field(
        default=None,
        validate_default=True,
        description="Image of a registry or the catalog. Unset without `imageRef` means nodus/python of that version.",
    )
    image_ref: ObjectName | None = Field(default=None, description="An Image object of the project instead.")
    image_pull_secrets: list[ObjectName] | None = Field(
        default=None, max_length=8, description="Secrets of type Registry for a private image."
    )
    command: Argv | None = Field(default=None, description="Replaces the worker; must speak its protocol.")
    args: list[Text] | None = Field(default=None, max_length=ARGUMENTS_MAX, description="Arguments of `command`.")
    working_dir: AbsolutePath | None = Field(default=None, description="Directory the worker starts in.")
    env: Env | None = Field(default=None, max_length=ENV_MAX, description="Environment variables.")
    secrets: Secrets | None = Field(
        default=None, max_length=SECRETS_MAX, description="Secrets whose keys become environment variables."
    )
    volumes: Volumes | None = Field(default=None, max_length=VOLUMES_MAX, description="Volumes to mount.")
    connections: list[ObjectName] | None = Field(default=None, max_length=16, description="Connections to make usable.")
    sidecars: Sidecars | None = Field(default=None, max_length=SIDECARS_MAX, description="Helpers beside the worker.")
    init_command: InitCommand | None = Field(default=None, description="A command to run before the worker.")
    network: Network | None = Field(default=None, description="What workers may reach; unset means any public host.")
    resources: Resources = Field(default_factory=Resources, description="The least a worker gets.")
    placement: Placement = Field(default_factory=Placement, description="Where workers may run.")
    recovery: Recovery = Field(default_factory=Recovery, description="What happens to calls of a lost worker.")
    service_account_name: ObjectName | None = Field(
        default=None, description="The ServiceAccount that the workers act as."
    )
    timeout: Annotated[Duration, *duration_between("1s", "24h")] = Field(
        default="300s", description="Longest run of one call, counted anew for each dispatch."
    )
    retries: FunctionRetries = Field(default_factory=FunctionRetries, description="What follows an exception.")
    scaling: FunctionScaling = Field(default_factory=FunctionScaling, description="How many workers there are.")
    max_cost_usd: Money | None = Field(
        default=None, description="Most that the workers may cost in all; can only be raised."
    )
    state: Annotated[Literal["Running", "Stopped"], BeforeValidator(_function_state)] = Field(
        default="Running", description="Stopped lets the workers go while calls queue up."
    )
    cluster: FunctionCluster | None = Field(default=None, description="Run each call on a gang of machines.")

    @field_validator("image")
    @classmethod
    def _has_the_python(cls, image: str | None, info: ValidationInfo) -> str | None:
        python = info.data.get("python")
        if image is not None and python is not None and python_of(image) not in (None, python):
            raise problem(f"must hold the Python of `spec.python`, which is {python}")
        return image

    @field_validator("image_ref")
    @classmethod
    def _is_alone(cls, image_ref: str | None, info: ValidationInfo) -> str | None:
        if image_ref is not None and info.data.get("image") is not None:
            raise problem("may not be specified when `image` is set", FORBIDDEN)
        return image_ref

    def to_wire(self) -> dict[str, Any]:
        """The canonical spec; the image that is meant when none is named is written down."""
        spec = super().to_wire()
        if self.image is None and self.image_ref is None:
            spec["image"] = python_image(self.python)
        return spec


class ImageProcess(ApiModel):
    """What an image runs when nothing else is said."""

    entrypoint: list[str] | None = Field(default=None, description="The entrypoint, before `cmd`.")
    cmd: list[str] | None = Field(default=None, description="The command, or the arguments of the entrypoint.")


class PinnedImage(ApiModel):
    """The image that workers are started from."""

    reference: str | None = Field(default=None, description="The image as it was named.")
    digest: str | None = Field(default=None, description="What it was pinned to.")
    user: str | None = Field(default=None, description="The user its processes run as.")
    process: ImageProcess | None = Field(default=None, description="What it runs when nothing else is said.")


class FunctionWorkers(ApiModel):
    """The workers of a Function, counted."""

    ready: int = Field(description="Workers that take calls: busy and idle ones.")
    busy: int = Field(description="Ready workers that run a call.")
    idle: int = Field(description="Ready workers that run none.")
    starting: int = Field(description="Workers that do not take calls yet.")
    draining: int | None = Field(default=None, description="Workers that finish their calls and go.")


class FunctionQueue(ApiModel):
    """The calls of a Function that have not ended, counted."""

    queued: int = Field(description="Calls that wait for a worker.")
    running: int = Field(description="Calls on a worker.")


class FunctionStatus(ApiModel):
    """What the server observed about a Function."""

    phase: str | None = Field(
        default=None,
        description="Pending, Starting, Running, Recovering, Stopping, Stopped, Terminating or Failed.",
    )
    reason: str | None = Field(default=None, description="Why it is in that phase, in one word.")
    message: str | None = Field(default=None, description="Why it is in that phase, in a sentence.")
    conditions: Conditions | None = Field(default=None, description="Ready and Funded.")
    observed_generation: int | None = Field(default=None, description="The generation this status speaks of.")
    workers: FunctionWorkers | None = Field(default=None, description="Its workers.")
    queue: FunctionQueue | None = Field(default=None, description="Its calls that have not ended.")
    image: PinnedImage | None = Field(default=None, description="The image of its workers.")
    cost: Cost | None = Field(default=None, description="What it has cost.")
    estimate: Estimate | None = Field(default=None, description="What it is expected to cost.")
    app_version: int | None = Field(default=None, description="Version of the App that last wrote it.")
    handled_requests: dict[str, str] | None = Field(
        default=None,
        description="For each requested action, the time of the last request; no older worker takes new calls.",
    )

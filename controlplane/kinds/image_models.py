"""The fields of an Image: how it is to be built and what came of it. `image.py` has its rules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationInfo, field_validator, model_validator

from controlplane.kinds.references import (
    AbsolutePath,
    BlobReference,
    EnvName,
    ImageReference,
    ObjectName,
    PythonVersion,
    ShortText,
    Text,
)
from controlplane.machinery.conditions import Conditions
from controlplane.machinery.grammar import TAG_PATTERN
from controlplane.machinery.model import ApiModel
from controlplane.machinery.problems import FORBIDDEN, REQUIRED, problem
from controlplane.machinery.quantities import Money

STEPS_MAX = 128
ITEMS_MAX = 1_024
DOCKERFILE_CHARACTERS_MAX = 256 << 10

Words = Annotated[list[Text], Field(min_length=1, max_length=ITEMS_MAX)]
Variables = Annotated[dict[EnvName, Text], Field(max_length=ITEMS_MAX)]


class PipInstall(ApiModel):
    """Python packages to install."""

    packages: Words = Field(description="Requirements, as pip takes them.")
    index_url: Text | None = Field(default=None, description="The index to use instead of the default.")
    extra_index_urls: list[Text] | None = Field(default=None, max_length=16, description="Indexes to use as well.")


class UvSync(ApiModel):
    """A uv project to install."""

    project: Text = Field(description="The project, as a blob with its lock file or as a path.")
    frozen: bool | None = Field(default=None, description="Whether the lock file is taken as it is.")


class ImageCopy(ApiModel):
    """Files to put into the image."""

    blob: BlobReference = Field(description="A tar.gz of them.")
    dest: AbsolutePath = Field(description="Where they go.")


class ImageStep(ApiModel):
    """One step of a build; it has exactly one of these fields."""

    apt_install: Words | None = Field(default=None, description="Debian packages to install.")
    pip_install: PipInstall | None = Field(default=None, description="Python packages to install with pip.")
    uv_pip_install: PipInstall | None = Field(default=None, description="Python packages to install with uv.")
    uv_sync: UvSync | None = Field(default=None, description="A uv project to install.")
    run: Words | None = Field(default=None, description="Shell commands, all in one layer.")
    env: Variables | None = Field(default=None, description="Environment variables to set.")
    workdir: AbsolutePath | None = Field(default=None, description="Working directory from here on.")
    copy_: ImageCopy | None = Field(default=None, description="Files to put into the image.")

    @model_validator(mode="after")
    def _is_one_thing(self) -> ImageStep:
        if len(self.model_fields_set) != 1:
            raise problem("must have exactly one field", REQUIRED)
        return self


class ImageDockerfile(ApiModel):
    """A Dockerfile to build."""

    inline: str | None = Field(default=None, max_length=DOCKERFILE_CHARACTERS_MAX, description="Its text.")
    blob: BlobReference | None = Field(default=None, validate_default=True, description="Its text, as a blob.")
    context: BlobReference | None = Field(default=None, description="The files that it may copy, as a blob.")
    target: ShortText | None = Field(default=None, description="The stage to build.")
    build_args: Variables | None = Field(default=None, description="Values of its arguments.")

    @field_validator("blob")
    @classmethod
    def _is_alone(cls, blob: str | None, info: ValidationInfo) -> str | None:
        if "inline" in info.data and (blob is None) is (info.data["inline"] is None):
            raise problem("must be specified, or `inline` must be, but not both", REQUIRED)
        return blob


class ImageFromSandbox(ApiModel):
    """The file system of a Sandbox as an image."""

    name: ObjectName = Field(description="Name of the Sandbox.")
    include_paths: list[AbsolutePath] | None = Field(
        default=None, max_length=ITEMS_MAX, description="Take only what is below these paths."
    )


class ImageSpec(ApiModel):
    """How an image is made: from a base with steps, from a Dockerfile, or from a Sandbox."""

    base: ImageReference | None = Field(default=None, description="The image the steps build on.")
    dockerfile: ImageDockerfile | None = Field(default=None, description="A Dockerfile to build instead.")
    from_sandbox: ImageFromSandbox | None = Field(
        default=None, validate_default=True, description="A Sandbox to take the file system of instead."
    )
    python: PythonVersion | None = Field(
        default=None, description="The Python of the steps; unset finds it in the base."
    )
    steps: list[ImageStep] | None = Field(
        default=None, max_length=STEPS_MAX, description="What is done on the base, in order."
    )
    platform: Literal["linux/amd64", "linux/arm64"] = Field(default="linux/amd64", description="What it is built for.")
    image_pull_secrets: list[ObjectName] | None = Field(
        default=None, max_length=8, description="Secrets of type Registry for a private base."
    )
    build_secrets: list[ObjectName] | None = Field(
        default=None, max_length=16, description="Secrets that steps may read; they never enter a layer."
    )
    tags: list[Annotated[str, StringConstraints(pattern=TAG_PATTERN)]] | None = Field(
        default=None, max_length=32, description="Tags the image gets."
    )

    @field_validator("from_sandbox")
    @classmethod
    def _has_one_origin(cls, sandbox: ImageFromSandbox | None, info: ValidationInfo) -> ImageFromSandbox | None:
        if not {"base", "dockerfile"} <= info.data.keys():
            return sandbox  # One of them has a problem of its own.
        origins = sum(origin is not None for origin in (info.data["base"], info.data["dockerfile"], sandbox))
        if origins > 1:
            raise problem("`base`, `dockerfile` and `fromSandbox` may not be specified together", FORBIDDEN)
        if origins == 0:
            raise problem("must be specified, or `base` or `dockerfile` must be", REQUIRED)
        return sandbox


class ImageBuild(ApiModel):
    """How a build went."""

    attempt: str | None = Field(default=None, description="The Attempt that built it.")
    cached: bool | None = Field(default=None, description="Whether an equal build's image was taken.")
    start_time: str | None = Field(default=None, description="When it began.")
    completion_time: str | None = Field(default=None, description="When it ended.")
    cpu_seconds: int | None = Field(default=None, description="Processor time it took.")
    cost_usd: Money | None = Field(default=None, description="What it cost.")


class ImageProgress(ApiModel):
    """How far a build is."""

    stage: str = Field(description="Queued, Building or Pushing.")


class ImageBuildStatus(ApiModel):
    """What came of an Image."""

    phase: str | None = Field(default=None, description="Pending, Ready, Failed or Terminating.")
    reason: str | None = Field(default=None, description="Why the build failed, in one word.")
    message: str | None = Field(default=None, description="Why the build failed, in a sentence.")
    conditions: Conditions | None = Field(default=None, description="Ready.")
    observed_generation: int | None = Field(default=None, description="The generation this status speaks of.")
    digest: str | None = Field(default=None, description="Digest of the manifest.")
    reference: str | None = Field(default=None, description="What to pull it by.")
    size: int | None = Field(default=None, description="Its compressed size in bytes.")
    python: str | None = Field(default=None, description="The Python in it.")
    spec_hash: str | None = Field(default=None, description="Hash of what was built; equal builds share an image.")
    tags: dict[str, str] | None = Field(default=None, description="The digest of each tag.")
    build: ImageBuild | None = Field(default=None, description="How the build went.")
    progress: ImageProgress | None = Field(default=None, description="How far the build is.")

"""What a container gets: environment, Secrets, Volumes, helpers and network. Shared by kinds that run code.

Where it may run and what it needs is in `placing.py`. The fields are validated in full even where this deployment does
not offer them yet, so a typo is told as a typo; what is not offered is refused by the table of the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationInfo, field_validator

from controlplane.kinds.egress import PRESETS
from controlplane.kinds.references import AbsolutePath, EnvName, ImageReference, ObjectName, Text
from controlplane.machinery.grammar import HOST_PATTERN
from controlplane.machinery.model import ApiModel, list_map
from controlplane.machinery.problems import DUPLICATE, FORBIDDEN, NOT_SUPPORTED, REQUIRED, Problem, problem, problems
from controlplane.machinery.quantities import Duration, duration_between

RESERVED_ENV_PREFIX = "NODUS_"
"""Variables of the worker itself, which user variables must not replace."""
ENV_MAX = 512
SECRETS_MAX = 64
VOLUMES_MAX = 32
SIDECARS_MAX = 8
ARGUMENTS_MAX = 256
EGRESS_HOSTS_MAX = 128
_ENV_VALUE_MAX = 32_768
_FORBIDDEN_MOUNTS = ("/proc", "/sys", "/dev", "/run/nodus", "/nodus/code")


class SecretKeySelector(ApiModel):
    """One key of a Secret."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: str = Field(min_length=1, max_length=128, description="The key in it.")


class EnvVarSource(ApiModel):
    """Where the value of a variable comes from."""

    secret_key_ref: SecretKeySelector | None = Field(
        default=None, validate_default=True, description="Take the value of one key of a Secret."
    )

    @field_validator("secret_key_ref")
    @classmethod
    def _is_set(cls, value: SecretKeySelector | None) -> SecretKeySelector | None:
        if value is None:
            raise problem("must be specified", REQUIRED)
        return value


class EnvVar(ApiModel):
    """One environment variable: a literal value, or the value of a Secret's key."""

    name: EnvName = Field(description="Name of the variable; names that start with NODUS_ belong to the worker.")
    value: Annotated[str, StringConstraints(max_length=_ENV_VALUE_MAX)] | None = Field(
        default=None, description="The literal value; absent means empty unless `valueFrom` is set."
    )
    value_from: EnvVarSource | None = Field(default=None, description="Where the value comes from instead.")

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name.startswith(RESERVED_ENV_PREFIX):
            raise problem(f"must not start with {RESERVED_ENV_PREFIX}: such variables belong to the worker", FORBIDDEN)
        return name

    @field_validator("value_from")
    @classmethod
    def _is_alone(cls, source: EnvVarSource | None, info: ValidationInfo) -> EnvVarSource | None:
        if source is not None and info.data.get("value") is not None:
            raise problem("may not be specified when `value` is set", FORBIDDEN)
        return source


def unique_by(read: Callable[[Any], str], path: str) -> AfterValidator:
    """Refuses items of a list for which `read` gives what an earlier item gave; `path` is below the item (`.name`)."""

    def validate(items: Sequence[Any]) -> Sequence[Any]:
        seen: set[str] = set()
        repeated: list[Problem] = []
        for index, item in enumerate(items):
            key = read(item)
            if key in seen:
                repeated.append(Problem(f'must not repeat "{key[:253]}"', DUPLICATE, f"[{index}]{path}"))
            seen.add(key)
        if repeated:
            raise problems(repeated)
        return items

    return AfterValidator(validate)


Env = Annotated[list[EnvVar], unique_by(lambda item: str(item.name), ".name"), list_map("name")]


def _secret_by_name(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class SecretMount(ApiModel):
    """A Secret whose keys all become environment variables."""

    name: ObjectName = Field(description="Name of the Secret. A bare name is accepted in place of the object.")
    version: int | None = Field(
        default=None, ge=1, description="Pin this version; unset takes the latest at the start."
    )


Secrets = Annotated[
    list[Annotated[SecretMount, BeforeValidator(_secret_by_name)]],
    unique_by(lambda item: str(item.name), ".name"),
    list_map("name"),
]


def _mount_point(path: str) -> str:
    normal = "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
    if normal == "/" or any(normal == taken or normal.startswith(f"{taken}/") for taken in _FORBIDDEN_MOUNTS):
        raise problem(f"must not be / or below one of {', '.join(_FORBIDDEN_MOUNTS)}")
    return normal


class VolumeMount(ApiModel):
    """A Volume in the file system."""

    volume: ObjectName = Field(description="Name of the Volume.")
    mount_path: Annotated[AbsolutePath, AfterValidator(_mount_point)] = Field(
        description="Where it appears; not /, nor inside the system's directories."
    )
    read_only: bool | None = Field(default=None, description="Whether writes are refused.")
    revision: int | None = Field(default=None, ge=1, description="Pin this revision; only with `readOnly`.")

    @field_validator("revision")
    @classmethod
    def _needs_read_only(cls, revision: int | None, info: ValidationInfo) -> int | None:
        if revision is not None and info.data.get("read_only", True) is not True:
            raise problem("may only be specified when `readOnly` is true", FORBIDDEN)
        return revision


Volumes = Annotated[
    list[VolumeMount], unique_by(lambda item: str(item.mount_path), ".mountPath"), list_map("mountPath")
]

Argv = Annotated[list[Text], Field(min_length=1, max_length=ARGUMENTS_MAX)]


class InitCommand(ApiModel):
    """A command that must succeed before the worker starts."""

    command: Argv = Field(description="The command and its arguments.")
    timeout: Annotated[Duration, *duration_between("1s", "30m")] | None = Field(
        default=None, description="How long it may take, at most 30m."
    )


class Sidecar(ApiModel):
    """A helper that is started before the worker and stopped after it."""

    name: ObjectName = Field(description="Name of the helper, unique in its list.")
    command: Argv = Field(description="The command and its arguments.")
    image: ImageReference | None = Field(default=None, description="Its image; unset takes that of the worker.")
    env: Env | None = Field(default=None, max_length=ENV_MAX, description="Its environment variables.")
    startup_timeout: Annotated[Duration, *duration_between("1s", "30m")] | None = Field(
        default=None, description="How long its process may take to begin, at most 30m."
    )


Sidecars = Annotated[list[Sidecar], unique_by(lambda item: str(item.name), ".name"), list_map("name")]

EgressHost = Annotated[str, StringConstraints(pattern=HOST_PATTERN, max_length=253)]


class Egress(ApiModel):
    """Which hosts a container may reach."""

    policy: Literal["Deny", "AllowList", "Open"] | None = Field(
        default=None,
        description="Deny reaches nothing, AllowList only the hosts given, Open every public one; unset means Open.",
    )
    allow: list[EgressHost] | None = Field(
        default=None, max_length=EGRESS_HOSTS_MAX, description="DNS names, or *.suffix; only with AllowList."
    )
    presets: list[ObjectName] | None = Field(
        default=None,
        max_length=16,
        description=f"Curated lists of hosts; only with AllowList. There are {', '.join(PRESETS)}.",
    )

    @field_validator("allow", "presets")
    @classmethod
    def _needs_allow_list(cls, hosts: list[str] | None, info: ValidationInfo) -> list[str] | None:
        if hosts and info.data.get("policy", "AllowList") != "AllowList":
            raise problem("may only be specified when `policy` is AllowList", FORBIDDEN)
        return hosts

    @field_validator("presets")
    @classmethod
    def _are_known(cls, presets: list[str] | None) -> list[str] | None:
        known = ", ".join(f'"{name}"' for name in PRESETS)
        unknown = [
            Problem(f"must be one of {known}; list other hosts in `allow`", NOT_SUPPORTED, f"[{index}]")
            for index, name in enumerate(presets or ())
            if name not in PRESETS
        ]
        if unknown:
            raise problems(unknown)
        return presets


class Network(ApiModel):
    """What a container may reach, by name and through the proxy of its host."""

    egress: Egress | None = Field(default=None, description="The policy for outgoing connections.")

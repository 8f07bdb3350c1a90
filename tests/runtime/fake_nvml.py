"""A library that plays NVML: the names and the shapes of `nvidia-ml-py`, for a host that a test describes."""

# ruff: noqa: N802 - the names are NVIDIA's

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace


class NVMLError(Exception):
    """As the real one, which has a class for each code."""


@dataclass
class FakeGpu:
    """One accelerator; `users` are processes that use it."""

    uuid: str
    name: str
    minor: int
    memory_bytes: int = 80 << 30
    divided: bool = False
    users: list[int] = field(default_factory=list)


HOST: list[FakeGpu] = []
"""What is there; tests fill it."""
LINKED: set[frozenset[str]] = set()
DRIVER: list[str] = []
"""Why the driver cannot be asked; empty when it can."""

NVML_P2P_CAPS_INDEX_NVLINK = 2
NVML_P2P_STATUS_OK = 0


def nvmlInit() -> None:
    if DRIVER:
        raise NVMLError(DRIVER[0])


def nvmlDeviceGetCount() -> int:
    return len(HOST)


def nvmlDeviceGetHandleByIndex(index: int) -> FakeGpu:
    return HOST[index]


def nvmlDeviceGetUUID(handle: FakeGpu) -> str:
    return handle.uuid


def nvmlDeviceGetName(handle: FakeGpu) -> bytes:
    return handle.name.encode()


def nvmlDeviceGetMemoryInfo(handle: FakeGpu) -> SimpleNamespace:
    return SimpleNamespace(total=handle.memory_bytes)


def nvmlDeviceGetMinorNumber(handle: FakeGpu) -> int:
    return handle.minor


def nvmlDeviceGetMigMode(handle: FakeGpu) -> list[int]:
    if handle.memory_bytes < 40 << 30:
        raise NVMLError("Not Supported")
    return [int(handle.divided)] * 2


def nvmlDeviceGetP2PStatus(first: FakeGpu, second: FakeGpu, index: int) -> int:
    assert index == NVML_P2P_CAPS_INDEX_NVLINK
    return NVML_P2P_STATUS_OK if frozenset((first.uuid, second.uuid)) in LINKED else 1


def nvmlDeviceGetComputeRunningProcesses(handle: FakeGpu) -> list[int]:
    return handle.users

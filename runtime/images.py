"""The images that this node has built: found by key, checked by content, leased to workers, collected when unused.

An image is a folder named by its key, which covers everything it was built from. It was renamed into place when it was
whole, so a folder that exists is complete. Inside are `tree/env`, the Python environment with the worker's packages and
the image's own; `tree/files`, the top folders that steps have filled; and `image.json`, which says how the two are used
and the digest that their content must have. Before an image is used for the first time in the life of a node process
its content is read and compared with the digest; one that differs is taken away and counts as missing.
`image_builder.py` makes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from runtime import sandbox, trees
from runtime.environments import Environment
from runtime.pythons import Interpreter

MANIFEST = "image.json"
_KEY = re.compile("image-[0-9a-f]{20}")
_LEFTOVER = re.compile(r"\.image-[0-9a-f]{20}\.(building|removing)")


class ImageMissingError(Exception):
    """This node has no such image, or one whose content is not what was built; it has to be built again."""


class ImagesFullError(Exception):
    """The images that are in use leave no room for another one; the message says how much they take."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What `image.json` says: how an image is used, and what it must contain."""

    digest: str
    size_bytes: int
    python_version: str
    executable: str
    variables: dict[str, str]
    directory: str | None
    scratch: list[str]
    """Top folders without any file: workers may write to them."""
    start_hooks: list[str]
    """What it adds to an interpreter's start (`start_hooks.py`); a worker may wait in an image that adds nothing."""

    def to_json(self) -> bytes:
        """The file's content."""
        return json.dumps(asdict(self), indent=1).encode()


def image_digest(tree: str, variables: Mapping[str, str], directory: str | None) -> str:
    """What an image is pinned to: its files, whose own digest is `tree`, and how a worker starts on them."""
    facts = json.dumps([tree, sorted(variables.items()), directory])
    return f"sha256:{hashlib.sha256(facts.encode()).hexdigest()}"


class ImageStore:
    """All images under one folder, which belongs to one node process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._leases: Counter[str] = Counter()
        self._checked: dict[str, Manifest] = {}
        self._checking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._building: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._publishing = asyncio.Lock()
        self._named: frozenset[str] = frozenset()

    def folder(self, key: str) -> Path:
        """Where the image of that key is, or would be; ValueError for what cannot be a key."""
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} cannot be the key of an image")
        return self._directory / key

    def building(self, key: str) -> Path:
        """Where it is built."""
        return self._directory / f".{self.folder(key).name}.building"

    def build_lock(self, key: str) -> asyncio.Lock:
        """Held by whoever builds it; the folder is one process's, so nobody else can be at it."""
        return self._building.setdefault(key, asyncio.Lock())

    def sweep(self) -> None:
        """Remove what builds and removals of a node process that died have left; for the start."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for entry in self._directory.iterdir():
            if _LEFTOVER.fullmatch(entry.name):
                trees.remove(entry)

    async def manifest(self, key: str) -> Manifest:
        """What an image of this node holds, its content checked; ImageMissingError when there is none."""
        lock = self._checking.setdefault(key, asyncio.Lock())
        async with lock:
            if key not in self._checked:
                self._checked[key] = await asyncio.to_thread(self._check, key)
        with contextlib.suppress(FileNotFoundError):
            # Counts as used, so that collection leaves it alone until an Image names it.
            os.utime(self.folder(key))
        return self._checked[key]

    async def environment(self, key: str, interpreter: Interpreter) -> Environment:
        """The environment that workers of this image run in. Hold a lease meanwhile.

        Raises ImageMissingError, also when the host's interpreter is not the one it was built on.
        """
        manifest = await self.manifest(key)
        if (manifest.python_version, manifest.executable) != (interpreter.version, str(interpreter.executable)):
            raise ImageMissingError(
                f"the image was built on Python {manifest.python_version}, and this host has {interpreter.version} now"
            )
        folder = self.folder(key)
        return Environment(
            key=key,
            path=folder / "tree" / "env",
            interpreter=interpreter,
            mounts=tuple(_mounts(folder / "tree" / "files", frozenset(manifest.scratch))),
            scratch=tuple(Path("/", top) for top in manifest.scratch),
            variables=tuple(manifest.variables.items()),
            directory=manifest.directory,
            image=key,
            may_wait=not manifest.start_hooks,
        )

    async def publish_within(self, disk_bytes_max: int, key: str, manifest: Manifest) -> None:
        """`publish`, after so many others were removed that all of them together take at most `disk_bytes_max`.

        Those that no Function names go first, then those that were used longest ago, which are built again when they
        are needed; none that is leased. Raises ImagesFullError, and removes nothing, when that is not enough.
        """
        async with self._publishing:
            await self._make_room(disk_bytes_max, await asyncio.to_thread(trees.disk_bytes, self.building(key)))
            await trees.to_end(self.publish, key, manifest)

    async def _make_room(self, disk_bytes_max: int, needed: int) -> None:
        sizes = {key: await asyncio.to_thread(trees.disk_bytes, self.folder(key)) for key in self.keys()}
        excess = needed + sum(sizes.values()) - disk_bytes_max
        idle = sorted((key for key in sizes if key not in self._leases), key=self._usefulness)
        if excess > sum(sizes[key] for key in idle):
            used = sum(sizes[key] for key in sizes.keys() - set(idle))
            raise ImagesFullError(f"it takes {needed} bytes, and images in use take {used} of {disk_bytes_max}")
        for key in idle:
            # One may have been leased or collected while another one was removed.
            if excess <= 0:
                return
            if key not in self._leases and self.folder(key).exists():
                await asyncio.to_thread(trees.remove, self._set_aside(key))
                excess -= sizes[key]

    def _usefulness(self, key: str) -> tuple[bool, float]:
        try:
            return key in self._named, self.folder(key).stat().st_mtime
        except FileNotFoundError:
            return False, 0.0

    def publish(self, key: str, manifest: Manifest) -> None:
        """Make a finished build the image of its key: everything to the disk, then one rename."""
        building = self.building(key)
        (building / MANIFEST).write_bytes(manifest.to_json())
        trees.sync(building)
        building.rename(self.folder(key))
        trees.sync_folder(self._directory)
        self._checked[key] = manifest

    @contextlib.contextmanager
    def lease(self, key: str) -> Iterator[None]:
        """Keep the image, present or not yet, from being collected meanwhile."""
        self._leases[key] += 1
        try:
            yield
        finally:
            self._leases[key] -= 1
            if not self._leases[key]:
                del self._leases[key]

    def keys(self) -> list[str]:
        """The images that are here."""
        return sorted(entry.name for entry in self._directory.iterdir() if _KEY.fullmatch(entry.name))

    async def collect(self, kept: frozenset[str], idle_seconds: float) -> list[str]:
        """Remove the images that are not among `kept`, that nobody leases, and that were last used so long ago."""
        self._named = kept
        before = time.time() - idle_seconds
        gone = [
            key
            for key in self.keys()
            if key not in kept and key not in self._leases and self.folder(key).stat().st_mtime <= before
        ]
        # Nothing may lease one of them between the look and the rename, so nothing waits between the two.
        removing = [self._set_aside(key) for key in gone]
        for folder in removing:
            await asyncio.to_thread(trees.remove, folder)
        return gone

    def _check(self, key: str) -> Manifest:
        folder = self.folder(key)
        try:
            manifest = Manifest(**_loaded(folder / MANIFEST))
            found = image_digest(trees.summary(folder / "tree").digest, manifest.variables, manifest.directory)
        except FileNotFoundError:
            raise ImageMissingError("this node does not have the image") from None
        except (OSError, TypeError, ValueError, trees.TreeRefusedError) as error:
            self._remove(key)
            raise ImageMissingError(f"the image on this node cannot be read: {error}") from error
        if found != manifest.digest:
            self._remove(key)
            raise ImageMissingError(f"the image on this node is {found}, and {manifest.digest} was built")
        return manifest

    def _remove(self, key: str) -> None:
        trees.remove(self._set_aside(key))

    def _set_aside(self, key: str) -> Path:
        """Make the image missing at once; where its files are until they are deleted."""
        self._checked.pop(key, None)
        removing = self._directory / f".{key}.removing"
        self.folder(key).rename(removing)
        return removing


def _loaded(path: Path) -> Mapping[str, Any]:
    told: Mapping[str, Any] = json.loads(path.read_bytes())
    return told


def _mounts(files: Path, scratch: frozenset[str]) -> Iterator[tuple[Path, Path]]:
    """What a worker sees of an image's files, and where. What is in the workspace goes into the worker's own."""
    for top in sorted(files.iterdir()):
        if top.name in scratch:
            continue
        inside = Path("/", top.name)
        if inside != sandbox.WORKSPACE:
            yield top, inside
            continue
        for entry in sorted(top.iterdir()):
            # A link could not be mounted; it would be followed on the host.
            if not entry.is_symlink():
                yield entry, inside / entry.name

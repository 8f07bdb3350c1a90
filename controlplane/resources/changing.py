"""Replaces and patches: read the object, apply the change, judge the result, write it if the copy was still true.

A request that names a `resourceVersion` loses against any other write, as optimistic locking demands. One that names
none means "whatever it is now": when somebody was faster the change is applied again to the newer object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson

from controlplane.admission import Admission
from controlplane.errors import not_found
from controlplane.identity.principal import Principal
from controlplane.machinery.kind import Kind
from controlplane.resources.answers import Answer
from controlplane.resources.mutations import HTTP_OK, RaceLostError, Update
from controlplane.store.contract import Document, Key
from controlplane.store.hooks import KindHooks
from controlplane.store.objects import Objects
from controlplane.store.writer import Writer

RACES_MAX = 8

Produce = Callable[[Document], Document]
"""From a copy of the stored object (which it may change) to the object the client wants."""


class Changer:
    """The verbs that change an object."""

    def __init__(
        self,
        *,
        writer: Writer,
        objects: Objects,
        admission: Admission,
        kinds: Mapping[str, Kind],
        hooks: Mapping[str, KindHooks],
    ) -> None:
        self._writer = writer
        self._objects = objects
        self._admission = admission
        self._kinds = kinds
        self._hooks = hooks

    async def change(
        self, key: Key, produce: Produce, caller: Principal, *, body: Document | None, dry_run: bool
    ) -> Answer:
        """Store what `produce` makes of the object and answer it; nothing is written when nothing differs.

        `body` is what the client sent when that is an object (a merge patch, a replacement): an App counts deploys by
        it.
        Raises NotFound, Conflict for a stale resourceVersion, FieldImmutable, Invalid, and what `produce` raises.
        """
        kind = self._kinds[key.kind]
        for _ in range(RACES_MAX):
            stored = await self._objects.get_document(key)
            if stored is None:
                raise not_found(kind.plural, key.name)
            wanted = produce(self._hooks[key.kind].editable(stored))
            if _version(wanted) not in ("", _version(stored)):
                raise RaceLostError(kind, key.name)
            new = await self._admission.update(kind, stored, wanted, caller, body)
            if dry_run:
                return Answer(HTTP_OK, orjson.dumps(self._hooks[key.kind].preview(new)))
            try:
                return await self._writer.write(Update(kind, key, stored, new, self._hooks[key.kind]))
            except RaceLostError:
                continue
        raise RaceLostError(kind, key.name)


def _version(document: Document) -> str:
    """The resourceVersion a document carries, or "" when it carries none."""
    metadata = document.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return "" if version is None else str(version)

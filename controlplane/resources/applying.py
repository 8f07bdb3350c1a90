"""Server-side apply as a verb: change the object, or create it when there is none.

The rules of ownership are in `controlplane/machinery/apply.py`; the writes are those of `Changer` and `Creator`, so an
apply is admitted, rehearsed and raced like any other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from controlplane.errors import ApiError, Reason
from controlplane.identity.principal import Principal
from controlplane.machinery.apply import Apply
from controlplane.machinery.kind import Kind, Verb
from controlplane.resources.answers import Answer, CreateOptions
from controlplane.resources.changing import RACES_MAX, Changer
from controlplane.resources.creating import Creator
from controlplane.resources.mutations import HTTP_CREATED, RaceLostError
from controlplane.store.contract import Document, Key


class Applier:
    """The verb that makes an object be as its manager wants it."""

    def __init__(self, *, creator: Creator, changer: Changer) -> None:
        self._creator = creator
        self._changer = changer

    async def apply(
        self,
        kind: Kind,
        key: Key,
        apply: Apply,
        caller: Principal,
        before_create: Callable[[], Awaitable[None]],
        *,
        dry_run: bool,
    ) -> Answer:
        """200 with the changed object or 201 with the created one. Raises what both verbs raise, and Conflict.

        `before_create` may refuse: whoever may change an object need not be allowed to make it.
        """
        for _ in range(RACES_MAX):
            try:
                return await self._changer.apply(key, apply, caller, dry_run=dry_run)
            except ApiError as error:
                missing = error.reason is Reason.NOT_FOUND and error.subject == (kind.plural, key.name)
                if not missing or apply.manager.subresource or Verb.CREATE not in kind.verbs:
                    raise
            await before_create()
            try:
                answer = await self._create(kind, key, apply, caller, dry_run=dry_run)
            except ApiError as error:
                if error.reason is not Reason.ALREADY_EXISTS:
                    raise
                continue
            if dry_run or answer.status == HTTP_CREATED:
                return replace(answer, etag=None)
            # An equal object came between and was answered instead; its fields are still to be owned.
        raise RaceLostError(kind, key.name)

    async def _create(self, kind: Kind, key: Key, apply: Apply, caller: Principal, *, dry_run: bool) -> Answer:
        body = _named(apply.config, key.name)
        if body["metadata"].get("uid"):
            raise ApiError(
                Reason.CONFLICT,
                f'the precondition failed: {kind.plural}.nodus.dev "{key.name}" does not exist, and `metadata.uid` '
                f'names "{body["metadata"]["uid"]}"',
                subject=(kind.plural, key.name),
            )
        options = CreateOptions(dry_run=dry_run, manager=apply.manager)
        return await self._creator.create(kind, key.project, body, caller, options)


def _named(config: Document, name: str) -> Document:
    """The configuration with the name of the path, unless it names another."""
    metadata = config.get("metadata")
    metadata = dict(metadata) if isinstance(metadata, dict) else {}
    if metadata.setdefault("name", name) != name:
        raise ApiError(
            Reason.BAD_REQUEST,
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})",
        )
    return {**config, "metadata": metadata}

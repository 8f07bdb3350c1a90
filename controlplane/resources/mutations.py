"""The generic writes as mutations: what each verb does to its object inside a commit.

Everything that needs I/O (defaults, validation, look-ups) happened before, against a read copy. Here each mutation only
checks that the copy is still true, lets the kind's hooks join and puts or removes. The verbs beside (`creating.py`,
`changing.py`, `deletion.py`) build these and repeat the ones that lost a race.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import orjson

from controlplane.errors import ApiError, Reason, not_found
from controlplane.ids import generated_name
from controlplane.limits.quotas import QuotaUse
from controlplane.machinery.conditions import Condition, with_condition
from controlplane.machinery.kind import Kind
from controlplane.machinery.managed_fields import managed_fields, with_managed_fields
from controlplane.machinery.model import ApiModel
from controlplane.resources.answers import Answer, DeleteOptions, Propagation
from controlplane.resources.replay import first_answer, keep_answer
from controlplane.store import finalizers
from controlplane.store.contract import Document, Key, Loader, Reads, Tx
from controlplane.store.hooks import KindHooks
from controlplane.store.idempotency import LOOKUP, KeyedRequest

HTTP_OK = 200
"""The status of an answer that may be replayed: it is stored with it."""
HTTP_CREATED = 201
"""The same for what is new."""

Owners = Callable[[Document, Document, datetime], list[Document]]
"""From the live object, the new one and the time to the new one's `managedFields`."""


Due = Callable[[Document], bool]
"""Whether the object, as it is in the transaction, is still one that should be deleted."""


def always_due(_current: Document) -> bool:
    """For deletes that name their object: it is meant whatever became of it."""
    return True


def owners_as_before(live: Document, _new: Document, _now: datetime) -> list[Document]:
    """The owners after a write that is nobody's but the server's."""
    return managed_fields(live)


class NamesTakenError(ApiError):
    """Generated names that exist already; `positions` tells which objects of the request need another."""

    def __init__(self, kind: Kind, positions: Sequence[int], name: str) -> None:
        super().__init__(
            Reason.ALREADY_EXISTS,
            f'{kind.plural}.nodus.dev "{name}" already exists: no free name was found for `metadata.generateName`',
            subject=(kind.plural, name),
        )
        self.positions = tuple(positions)


class RaceLostError(ApiError):
    """The object changed between the read copy and the commit; as an answer it is the well-known 409 Conflict."""

    def __init__(self, kind: Kind, name: str) -> None:
        super().__init__(
            Reason.CONFLICT,
            f'Operation cannot be fulfilled on {kind.plural}.nodus.dev "{name}": the object has been modified; '
            "please apply your changes to the latest version and try again",
            subject=(kind.plural, name),
        )


@dataclass(slots=True)
class Creation:
    """One object to create; `generate_name` is the prefix when the server chose the name and may choose another."""

    key: Key
    document: Document
    generate_name: str = ""

    def rename(self) -> None:
        """Choose another name, because the present one is taken."""
        name = generated_name(self.generate_name)
        self.key = replace(self.key, name=name)
        self.document = {**self.document, "metadata": {**self.document["metadata"], "name": name}}


class Create:
    """Creates one object, or all objects of a list, or nothing; answers a repeated request with its first answer."""

    def __init__(
        self,
        kind: Kind,
        creations: Sequence[Creation],
        hooks: KindHooks,
        keyed: KeyedRequest | None,
        *,
        as_list: bool,
    ) -> None:
        self._kind = kind
        self._creations = creations
        self._hooks = hooks
        self._keyed = keyed
        self._as_list = as_list
        first = creations[0].key  # all are of one kind and project
        self._quota = QuotaUse(kind.kind, first.org, first.project)

    def reads(self) -> Reads:
        keys: list[Key] = []
        loads: list[tuple[Loader, Hashable]] = [*self._quota.loads()]
        for creation in self._creations:
            reads = self._hooks.reads_create(creation.key, creation.document)
            keys.append(creation.key)
            keys += reads.keys
            loads += reads.loads
        if self._keyed is not None:
            loads.append((LOOKUP, self._keyed.argument))
        return Reads(keys=list(dict.fromkeys(keys)), loads=list(dict.fromkeys(loads)))

    def apply(self, tx: Tx) -> Answer:
        if self._keyed is not None:
            stored = first_answer(tx, self._keyed)
            if stored is not None:
                return stored
        taken = [
            position
            for position, creation in enumerate(self._creations)
            if creation.generate_name and tx.get(creation.key) is not None
        ]
        if taken:
            raise NamesTakenError(self._kind, taken, self._creations[taken[0]].key.name)
        admitted = [self._admit(tx, creation) for creation in self._creations]
        new = sum(is_new for _, is_new in admitted)
        self._quota.check(tx, new)
        documents = []
        created = False
        for creation, (document, is_new) in zip(self._creations, admitted, strict=True):
            if is_new:
                document = tx.put(creation.key, document)
                self._hooks.created(tx, creation.key, document)
                created = True
            documents.append(self._hooks.answered(tx, creation.key, document))
        answer = Answer(HTTP_CREATED if created else HTTP_OK, self._body(documents))
        if self._keyed is not None:
            keep_answer(tx, self._keyed, answer)
        self._quota.take(tx, new)
        return answer

    def _admit(self, tx: Tx, creation: Creation) -> tuple[Document, bool]:
        """The document to put, or the equal one that is stored already."""
        stored = tx.get(creation.key)
        if stored is None:
            return self._hooks.admit_create(tx, creation.key, creation.document), True
        name = creation.key.name
        if finalizers.is_deleting(stored):
            raise ApiError(
                Reason.ALREADY_EXISTS,
                f'object is being deleted: {self._kind.plural}.nodus.dev "{name}" already exists',
                subject=(self._kind.plural, name),
                fix="Wait until the object is gone, or choose another name.",
            )
        differences = self._hooks.differences(tx, creation.key, stored, creation.document)
        if differences:
            raise already_exists(self._kind, name, differences)
        return stored, False

    def _body(self, documents: Sequence[Document]) -> bytes:
        if not self._as_list:
            return orjson.dumps(documents[0])
        highest = max((int(document["metadata"]["resourceVersion"]) for document in documents), default=0)
        return list_body(
            self._kind, [orjson.dumps(document) for document in documents], {"resourceVersion": str(highest)}
        )


class Update:
    """Replaces an object whose read copy is `base`, or says that the copy is no longer true.

    `owners` makes the new `managedFields`, by default those there were; `claims` says that owning a field is a change
    in itself, as for an apply.
    """

    def __init__(
        self,
        kind: Kind,
        key: Key,
        base: Document,
        new: Document,
        hooks: KindHooks,
        owners: Owners = owners_as_before,
        *,
        claims: bool = False,
    ) -> None:
        self._kind = kind
        self._key = key
        self._base = base
        self._new = new
        self._hooks = hooks
        self._owners = owners
        self._claims = claims

    def reads(self) -> Reads:
        reads = self._hooks.reads_update(self._key, self._new)
        deletes = self._hooks.reads_delete(self._key)
        return Reads(keys=(self._key, *reads.keys, *deletes.keys), loads=(*reads.loads, *deletes.loads))

    def apply(self, tx: Tx) -> Answer:
        current = tx.get(self._key)
        if current is None:
            raise not_found(self._kind.plural, self._key.name)
        if current["metadata"]["resourceVersion"] != self._base["metadata"]["resourceVersion"]:
            raise RaceLostError(self._kind, self._key.name)
        live = self._hooks.editable(current)
        compared = self._hooks.comparable(tx, self._key, current, self._new)
        owned = with_managed_fields(self._new, self._owners(live, compared, tx.now))
        new = self._hooks.updated(tx, self._key, current, owned)
        if not self._claims and _same_but_for_owners(new, current) and not _same_but_for_owners(compared, live):
            # What was asked for came to nothing (a cancel that was too late), so it owns nothing.
            new = current
        if not finalizers.is_gone(new):
            return Answer(HTTP_OK, orjson.dumps(tx.put(self._key, new)))
        # The last state with the revision of the delete, as watchers get it: `new` was never stored.
        last = tx.remove(self._key)
        self._hooks.removed(tx, self._key, new)
        return Answer(HTTP_OK, orjson.dumps(last))


class Delete:
    """Removes an object, or marks it and leaves the finalizers that others take off later.

    `has_dependents` was read beforehand: it only spares childless objects the wait for the garbage collector, which
    finds late children by their missing owner. An object that is no longer `due` was changed since somebody chose it
    for what it was, and is not found.
    """

    def __init__(
        self,
        kind: Kind,
        key: Key,
        base: Document,
        hooks: KindHooks,
        options: DeleteOptions,
        *,
        has_dependents: bool,
        due: Due = always_due,
    ) -> None:
        self._kind = kind
        self._key = key
        self._base = base
        self._hooks = hooks
        self._options = options
        self._has_dependents = has_dependents
        self._due = due

    def reads(self) -> Reads:
        reads = self._hooks.reads_delete(self._key)
        return Reads(keys=(self._key, *reads.keys), loads=reads.loads)

    def apply(self, tx: Tx) -> Document | None:
        """The object as it stays, or None when it is gone."""
        current = tx.get(self._key)
        if current is None or not self._due(current):
            raise not_found(self._kind.plural, self._key.name)
        if current["metadata"]["uid"] != self._base["metadata"]["uid"]:
            raise RaceLostError(self._kind, self._key.name)
        check_preconditions(self._kind, current, self._options)
        if finalizers.is_deleting(current):
            # A second delete changes nothing: a finalizer added now might have nobody left to take it off.
            return current
        marked = marked_for_deletion(self._kind, current, self._options, tx, has_dependents=self._has_dependents)
        marked = self._hooks.deleting(tx, self._key, marked)
        stored = finalizers.settle(tx, self._key, marked)
        if stored is None:
            self._hooks.removed(tx, self._key, marked)
        return stored


def _same_but_for_owners(left: Document, right: Document) -> bool:
    """Whether two versions say the same; the generation only follows the spec."""
    return _without_owners(left) == _without_owners(right)


def _without_owners(document: Document) -> Document:
    metadata = {
        name: value for name, value in document["metadata"].items() if name not in ("managedFields", "generation")
    }
    return {**document, "metadata": metadata}


def already_exists(kind: Kind, name: str, differences: list[str]) -> ApiError:
    """The 409 of a named create that meets another spec; `details.diff` lists where they differ."""
    return ApiError(
        Reason.ALREADY_EXISTS,
        f'{kind.plural}.nodus.dev "{name}" already exists and differs in {", ".join(differences)}',
        subject=(kind.plural, name),
        details={"diff": differences},
    )


def marked_for_deletion(
    kind: Kind, document: Document, options: DeleteOptions, tx: Tx, *, has_dependents: bool
) -> Document:
    """The object with its deletionTimestamp and the finalizers that its kind and the propagation ask for."""
    marked = finalizers.marked_for_deletion(document, tx.now)
    if kind.deletion_finalizer:
        marked = finalizers.with_finalizer(marked, kind.deletion_finalizer)
    if has_dependents and options.propagation is Propagation.FOREGROUND:
        marked = finalizers.with_finalizer(marked, finalizers.FOREGROUND)
    if has_dependents and options.propagation is Propagation.ORPHAN:
        marked = finalizers.with_finalizer(marked, finalizers.ORPHAN)
    if kind.status is not None and kind.deleting_phase and finalizers.finalizers(marked):
        marked["status"] = _deleting_status(kind, kind.status, marked, tx.now)
    return marked


def _deleting_status(kind: Kind, model: type[ApiModel], document: Document, now: datetime) -> Document:
    """The status of an object that stays for a while after its delete was asked."""
    status = document.get("status", {})
    told = {"phase": kind.deleting_phase, "reason": "Deleted", "message": "it is being deleted"}
    known = {name: value for name, value in told.items() if name in model.model_fields}
    ready = Condition("Ready", "False", "Deleted", "it is being deleted", document["metadata"]["generation"])
    return {**status, **known, "conditions": with_condition(status.get("conditions", ()), ready, now)}


def check_preconditions(kind: Kind, document: Document, options: DeleteOptions) -> None:
    """409 when the object is not the one, or not in the version, that the client means to delete."""
    metadata = document["metadata"]
    for field, wanted in (("uid", options.uid), ("resourceVersion", options.resource_version)):
        if wanted is not None and wanted != metadata[field]:
            raise ApiError(
                Reason.CONFLICT,
                f'the precondition failed: `{field}` of {kind.plural}.nodus.dev "{metadata["name"]}" is '
                f'"{metadata[field]}", not "{wanted}"',
                subject=(kind.plural, metadata["name"]),
            )


def list_body(kind: Kind, documents: Sequence[bytes], metadata: dict[str, object]) -> bytes:
    """A serialised list of serialised objects; the objects are not parsed again."""
    head = orjson.dumps({"apiVersion": kind.api_version, "kind": kind.list_kind, "metadata": metadata})
    return b'%s,"items":[%s]}' % (head[:-1], b",".join(documents))

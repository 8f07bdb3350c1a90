"""The generic verbs over every kind: the domain's front door.

`Resources` bundles them; `api/resources.py` and the controllers call `resources.creator.create(...)`,
`resources.changer.change(...)`, `resources.applier.apply(...)`, `resources.deleter.delete(...)`,
`resources.collections.delete(...)` and `resources.reader.list(...)`. A verb reads what it needs, admits the result
(`controlplane/admission.py`) and commits one mutation (`mutations.py`) through the writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.admission import Admission, BlobExists, SecretsHolding
from controlplane.clock import Clock
from controlplane.estimates.estimator import Estimator
from controlplane.limits.switches import Switches
from controlplane.machinery.kind import Kind
from controlplane.placement.placements import Placements
from controlplane.resources.answers import Answer, CreateOptions, DeleteOptions, Propagation
from controlplane.resources.applying import Applier
from controlplane.resources.changing import Changer
from controlplane.resources.collections import CollectionDeleter
from controlplane.resources.creating import Creator
from controlplane.resources.deletion import Deleter
from controlplane.resources.listing import ListOptions
from controlplane.resources.reading import Page, Reader
from controlplane.settings import Settings
from controlplane.store.cache import ObjectCache
from controlplane.store.changes import ChangeFeed
from controlplane.store.database import Database
from controlplane.store.garbage import Garbage
from controlplane.store.hooks import KindHooks, PlainHooks
from controlplane.store.objects import Objects
from controlplane.store.watch import Watches
from controlplane.store.writer import Writer

__all__ = ["Answer", "CreateOptions", "DeleteOptions", "ListOptions", "Page", "Propagation", "Resources", "build"]


@dataclass(frozen=True)
class Resources:
    """The verbs, sharing one store."""

    admission: Admission
    reader: Reader
    creator: Creator
    changer: Changer
    applier: Applier
    deleter: Deleter
    collections: CollectionDeleter
    estimator: Estimator


def build(
    *,
    database: Database,
    writer: Writer,
    objects: Objects,
    cache: ObjectCache,
    feed: ChangeFeed,
    kinds: Mapping[str, Kind],
    hooks: Mapping[str, KindHooks],
    blob_exists: BlobExists,
    secrets_holding: SecretsHolding,
    settings: Settings,
    clock: Clock,
    switches: Switches,
    placements: Placements,
) -> Resources:
    """The verbs over this store. `kinds` and `hooks` are by kind name; a kind without hooks gets plain ones."""
    all_hooks: dict[str, KindHooks] = {kind: hooks.get(kind, PlainHooks()) for kind in kinds}
    admission = Admission(
        kinds=kinds,
        cache=cache,
        objects=objects,
        blob_exists=blob_exists,
        secrets_holding=secrets_holding,
        switches=switches,
        clock=clock,
    )
    estimator = Estimator(database=database, cache=cache, placements=placements, settings=settings, clock=clock)
    creator = Creator(
        writer=writer, admission=admission, hooks=all_hooks, estimator=estimator, settings=settings, clock=clock
    )
    changer = Changer(
        writer=writer, objects=objects, admission=admission, kinds=kinds, hooks=all_hooks, estimator=estimator
    )
    reader = Reader(
        objects=objects,
        feed=feed,
        watches=Watches(database, feed, settings),
        kinds=kinds,
        settings=settings,
        clock=clock,
    )
    deleter = Deleter(writer=writer, objects=objects, garbage=Garbage(database), kinds=kinds, hooks=all_hooks)
    return Resources(
        admission=admission,
        reader=reader,
        creator=creator,
        changer=changer,
        applier=Applier(creator=creator, changer=changer),
        deleter=deleter,
        collections=CollectionDeleter(reader=reader, deleter=deleter, kinds=kinds),
        estimator=estimator,
    )

"""Creates: one object or many, rehearsed or real, once per Idempotency-Key.

`Creator` admits the objects (`controlplane/admission.py`), then writes them in one mutation; names that the server
chose and that turn out to be taken are chosen again. Whatever is refused leaves nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import orjson

from controlplane.admission import Admission, Admitted
from controlplane.clock import Clock
from controlplane.errors import ApiError, Cause, Reason
from controlplane.estimates.estimator import FUNCTION_KIND, Estimator
from controlplane.estimates.quoting import Quote, blocked, etag_of
from controlplane.identity.principal import Principal
from controlplane.kinds.quotes import quoted
from controlplane.machinery.kind import Kind, Scope
from controlplane.machinery.managed_fields import first_owner, with_managed_fields
from controlplane.machinery.validation import CAUSES_MAX
from controlplane.resources.answers import Answer, CreateOptions
from controlplane.resources.mutations import HTTP_OK, Create, Creation, NamesTakenError
from controlplane.resources.replay import Recall, is_final
from controlplane.settings import Settings
from controlplane.store.contract import Document, Key
from controlplane.store.hooks import KindHooks
from controlplane.store.idempotency import KEY_LENGTH_MAX, KeyedRequest
from controlplane.store.rehearsal import UNWRITTEN_REVISION, Rehearsal
from controlplane.store.writer import Writer

NAME_TRIES_MAX = 8
"""As many as Kubernetes makes for `generateName`."""
IN_PROGRESS_SECONDS = 1
"""When to repeat a request whose first one still runs: the least that Retry-After can say, as most creates take
milliseconds."""
_ADMISSIONS_PER_TURN = 64
"""Objects of a batch judged before other requests get a turn on the event loop."""


async def _nothing() -> None:
    """Requires nothing."""


class Creator:
    """The create verbs."""

    def __init__(
        self,
        *,
        writer: Writer,
        admission: Admission,
        hooks: Mapping[str, KindHooks],
        estimator: Estimator,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._writer = writer
        self._admission = admission
        self._hooks = hooks
        self._estimator = estimator
        self._settings = settings
        self._clock = clock
        self._in_progress: set[str] = set()

    async def create(
        self, kind: Kind, project: str, body: Document, caller: Principal, options: CreateOptions
    ) -> Answer:
        """Create one object: 201 with it, 200 with an equal one of that name, or a rehearsal's 200 that stored nothing.

        A rehearsal's answer has the estimate; so has a new Function, and what is created bound to an estimate's ETag.
        Raises AlreadyExists with `details.diff` when the name is taken by a different spec, PreconditionFailed when
        `if_match` is not the rehearsal's ETag now, and whatever admission refuses.
        """

        async def attempt() -> Answer:
            refusals: list[ApiError] = []
            wanting = refusals if options.dry_run else None
            quotable = wanting if self._estimator.has_book else None
            admitted = await self._admission.create(kind, project, body, caller, quotable=quotable, wanting=wanting)
            creation = _creation(kind, project, self._owned(kind, body, admitted, options), caller)
            quote = await self._quote(creation, options)
            if quote is None and refusals:
                raise refusals[0]  # There is no estimate that could tell it.
            if options.is_bound and options.if_match != (etag := _etag(creation, quote)):
                raise ApiError(
                    Reason.PRECONDITION_FAILED,
                    f"`If-Match` is {options.if_match}, but a dry-run now gives {etag}: the spec or its price is not "
                    "what was reviewed",
                    fix="Repeat the dry-run, look at its estimate and send its ETag.",
                )
            if options.dry_run:
                return replace(
                    await self._rehearse(kind, creation, quote, refusals, options), etag=_etag(creation, quote)
                )
            if quote is not None:
                creation.document = _with_quote(creation.document, quote, options)
            return await self._write(kind, [creation], options, as_list=False)

        answer = await self._once(options, attempt)
        return replace(answer, body=self._hooks[kind.kind].revealed(answer.body))

    async def create_many(
        self,
        kind: Kind,
        project: str,
        bodies: Sequence[Document],
        caller: Principal,
        options: CreateOptions,
        require: Callable[[], Awaitable[None]] = _nothing,
    ) -> Answer:
        """Create all objects in their order or none of them; answers a list of them.

        A batch is at most `settings.batch_calls_max` objects. Problems of all objects are told together, their fields
        prefixed with `items[i]`. `require` raises what makes all of them pointless; a repeated request, whose first
        answer holds whatever became of that, does not meet it.
        """

        async def attempt() -> Answer:
            await require()
            if len(bodies) > self._settings.batch_calls_max:
                raise ApiError(
                    Reason.FUNCTION_CALL_BATCH_TOO_LARGE,
                    f"`items` has {len(bodies)} objects; a batch may have at most {self._settings.batch_calls_max}",
                )
            creations = [
                _creation(kind, project, self._owned(kind, body, admitted, options), caller)
                for body, admitted in zip(bodies, await self._admit_all(kind, project, bodies, caller), strict=True)
            ]
            return await self._write(kind, creations, options, as_list=True)

        options.require_unbound()
        return await self._once(options, attempt)

    async def _once(self, options: CreateOptions, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        """Run `attempt` under its Idempotency-Key: a repetition gets the first answer, also when it was a refusal.

        Rehearsals store nothing, so they are never replayed: an estimate should be today's.
        """
        keyed = options.keyed
        if keyed is None or options.dry_run:
            return await attempt()
        with self._exclusively(keyed):
            try:
                return await attempt()
            except ApiError as refusal:
                if not is_final(refusal):
                    raise
                answer = await self._writer.write(Recall(keyed, refusal))
                if answer is None:
                    raise
                return answer

    @contextmanager
    def _exclusively(self, keyed: KeyedRequest) -> Iterator[None]:
        """Refuse a second request with the key while the first still runs in this process."""
        if len(keyed.key) > KEY_LENGTH_MAX or "\x01" in keyed.key:
            raise ApiError(
                Reason.BAD_REQUEST, f"`Idempotency-Key` must be at most {KEY_LENGTH_MAX} printable characters"
            )
        if keyed.argument in self._in_progress:
            raise ApiError(
                Reason.REQUEST_IN_PROGRESS,
                "the first request with this Idempotency-Key has not been answered yet",
                retry_after_seconds=IN_PROGRESS_SECONDS,
            )
        self._in_progress.add(keyed.argument)
        try:
            yield
        finally:
            self._in_progress.discard(keyed.argument)

    async def _write(self, kind: Kind, creations: list[Creation], options: CreateOptions, *, as_list: bool) -> Answer:
        for tries_left in reversed(range(NAME_TRIES_MAX)):
            _check_names(kind, creations)
            keyed = None if options.dry_run else options.keyed
            create = Create(kind, creations, self._hooks[kind.kind], keyed, as_list=as_list)
            try:
                if options.dry_run:
                    return _unwritten(await self._writer.write(Rehearsal(create)))
                return await self._writer.write(create)
            except NamesTakenError as error:
                if not tries_left:
                    raise
                for position in error.positions:
                    creations[position].rename()
        raise AssertionError("unreachable: the last try returns or raises")

    def _owned(self, kind: Kind, body: Document, admitted: Admitted, options: CreateOptions) -> Admitted:
        """The object with its creator as the owner of what `body` sent."""
        if options.manager is None:
            return admitted
        owners = first_owner(kind, body, admitted.document, options.manager, self._clock.now())
        if not owners:
            return admitted
        return replace(admitted, document=with_managed_fields(admitted.document, owners))

    async def _admit_all(
        self, kind: Kind, project: str, bodies: Sequence[Document], caller: Principal
    ) -> list[Admitted]:
        admitted: list[Admitted] = []
        causes: list[Cause] = []
        lookup = self._admission.lookup(caller.org, project)
        for position, body in enumerate(bodies):
            if position % _ADMISSIONS_PER_TURN == _ADMISSIONS_PER_TURN - 1:
                await asyncio.sleep(0)
            try:
                admitted.append(await self._admission.create(kind, project, body, caller, lookup))
            except ApiError as error:
                if error.reason is not Reason.INVALID or not error.causes:
                    raise
                causes += [replace(cause, field=f"items[{position}].{cause.field}") for cause in error.causes]
            if len(causes) >= CAUSES_MAX:
                break
        if causes:
            raise _invalid_items(kind, causes[:CAUSES_MAX])
        return admitted

    async def _quote(self, creation: Creation, options: CreateOptions) -> Quote | None:
        """The estimate where somebody looks at it: an ordinary create of a call asks for none, since calls are hot."""
        if not options.dry_run and not options.is_bound and creation.key.kind != FUNCTION_KIND:
            return None
        return await self._estimator.quote(creation.key, creation.document)

    async def _rehearse(
        self, kind: Kind, creation: Creation, quote: Quote | None, refusals: list[ApiError], options: CreateOptions
    ) -> Answer:
        """What a create would answer. Want of money or room is told in the estimate, where it can be weighed."""
        try:
            body: Document = orjson.loads((await self._write(kind, [creation], options, as_list=False)).body)
        except ApiError as error:
            if quote is None or not error.is_want:
                raise
            body, refusals = creation.document, [*refusals, error]
        if quote is not None:
            body = {**body, "status": {**body["status"], "estimate": blocked(quote.estimate, refusals)}}
        return Answer(HTTP_OK, orjson.dumps(body))


def _etag(creation: Creation, quote: Quote | None) -> str:
    """What binds a create to its rehearsal; it hashes the spec, input and all, so it is made where it is looked at."""
    return quote.etag if quote is not None else etag_of(creation.document.get("spec"))


def _with_quote(document: Document, quote: Quote, options: CreateOptions) -> Document:
    """The new object with its estimate, and with the quoted rate if the create was bound to that."""
    told = {**document, "status": {**document["status"], "estimate": quote.estimate}}
    if not options.is_bound or quote.rate_micro_usd_per_hour is None:
        return told
    return quoted(told, quote.rate_micro_usd_per_hour)


def _creation(kind: Kind, project: str, admitted: Admitted, caller: Principal) -> Creation:
    key = Key(
        kind.kind,
        caller.org,
        project if kind.scope is Scope.PROJECT else "",
        admitted.document["metadata"]["name"],
    )
    return Creation(key, admitted.document, admitted.generate_name)


def _unwritten(answer: Answer) -> Answer:
    """The answer of a rehearsal: 200, and new objects have no revision yet."""
    body: Document = orjson.loads(answer.body)
    for document in (body, *body.get("items", ())):
        if document["metadata"].get("resourceVersion") == UNWRITTEN_REVISION:
            del document["metadata"]["resourceVersion"]
    return Answer(HTTP_OK, orjson.dumps(body))


def _check_names(kind: Kind, creations: Sequence[Creation]) -> None:
    """Within one request, names that the client chose must differ; generated ones are chosen again until they do."""
    seen: set[Key] = set()
    for position, creation in enumerate(creations):
        while creation.generate_name and creation.key in seen:
            creation.rename()
        if creation.key in seen:
            problem = f'must not repeat the name "{creation.key.name}" of an earlier item'
            raise _invalid_items(kind, [Cause(f"items[{position}].metadata.name", problem, "FieldValueDuplicate")])
        seen.add(creation.key)


def _invalid_items(kind: Kind, causes: Sequence[Cause]) -> ApiError:
    told = "; ".join(f"{cause.field}: {cause.message}" for cause in causes[:3])
    more = "" if len(causes) <= 3 else f"; and {len(causes) - 3} more problems"
    return ApiError(Reason.INVALID, f"{kind.list_kind} is invalid: {told}{more}", causes=tuple(causes))

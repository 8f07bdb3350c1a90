"""The Function kind: a Python function served by a pool of workers.

The fields are in `function_models.py`. Here are the rules that need more than the spec: that what it refers to exists,
that it joins its App, that its cost cap only grows, and what this deployment does not offer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from controlplane.errors import ApiError, Cause, Reason, invalid, told
from controlplane.kinds.accelerators import are_offered
from controlplane.kinds.catalog import CATALOG_ADVICE, is_offered
from controlplane.kinds.charge_views import FunctionChargesStatus
from controlplane.kinds.function_models import FunctionSpec, FunctionStatus
from controlplane.kinds.granting import check_given
from controlplane.kinds.membership import APP_LABEL, join_app
from controlplane.kinds.quotes import without_quote
from controlplane.kinds.references import digest_of
from controlplane.machinery.conditions import Condition, with_condition
from controlplane.machinery.documents import immutable, value_at
from controlplane.machinery.kind import (
    ALL_VERBS,
    AdmissionContext,
    Column,
    Document,
    Kind,
    ScalePaths,
    Scope,
    Subresource,
    Unoffered,
)
from controlplane.machinery.problems import NOT_FOUND
from controlplane.machinery.quantities import parse_money
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, NOTHING, PHASE_COLUMN, text_at

_QUOTED_FIELDS = ("spec.resources", "spec.placement", "spec.scaling.targetConcurrency")
"""What the price of a call depends on: a quote that a Function is bound to is for these."""


class FunctionStrategy:
    """What Functions add to the generic verbs."""

    async def prepare_create(self, document: Document, context: AdmissionContext) -> None:
        await _check_references(None, document, context)
        await _check_account(None, document, context)
        await _check_variables(None, document, context)
        app = await join_app(document, context)
        name = document["spec"].get("imageRef")
        image = await context.lookup.get("Image", name) if name is not None else None
        document["status"] = _initial_status(document["spec"], image, context.now)
        _note_app_version(document, app)

    async def prepare_update(self, old: Document, new: Document, context: AdmissionContext) -> None:
        _check_cost_cap(old, new)
        await _check_references(old, new, context)
        await _check_account(old, new, context)
        await _check_variables(old, new, context)
        app = await join_app(new, context)
        _check_stays(old, new, app)
        if new["spec"] != old["spec"]:
            _note_app_version(new, app)
        if any(value_at(old, path) != value_at(new, path) for path in _QUOTED_FIELDS):
            new["metadata"] = without_quote(new)["metadata"]
        new["status"] = {**new["status"], **_observed_at_once(old, new)}


def _observed_at_once(old: Document, new: Document) -> Document:
    """The parts of status that only repeat the spec and so change with it."""
    changes: Document = {}
    image, cap = new["spec"].get("image"), new["spec"].get("maxCostUSD")
    if image != old["spec"].get("image"):
        # The digest and process of the old image say nothing about the new one.
        changes["image"] = {"reference": image} if image else {}
    if cap != old["spec"].get("maxCostUSD"):
        cost = {name: amount for name, amount in new["status"].get("cost", {}).items() if name != "limitUSD"}
        changes["cost"] = {**cost, "limitUSD": cap} if cap else cost
    return changes


def _initial_status(spec: Document, image: Document | None, now: datetime) -> Document:
    """Running at once when calls can be taken without a worker, as with scale to zero; Pending without an image."""
    stopped = spec["state"] == "Stopped"
    unbuilt = image is not None and image["status"].get("phase") != "Ready"
    warm = spec["scaling"]["minWorkers"] > 0
    if stopped:
        phase, reason, message = "Stopped", "Stopped", "stopped by request; calls queue until it is started"
        ready = Condition("Ready", "False", "Stopped", message, 1)
    elif unbuilt:
        phase, reason, message = "Pending", "ImagePending", f'waiting for the Image "{spec["imageRef"]}"'
        ready = Condition("Ready", "False", "ImagePending", message, 1)
    elif warm:
        phase, reason, message = "Starting", "Starting", "the first worker has not started yet"
        ready = Condition("Ready", "False", "Starting", message, 1)
    else:
        phase, reason, message = "Running", "Idle", "ready to take calls; workers start with the first one"
        ready = Condition("Ready", "True", "ScaledToZero", message, 1)
    conditions = with_condition([], ready, now)
    conditions = with_condition(conditions, Condition("Funded", "True", "Funded", "calls can be paid for", 1), now)
    cost = {"totalUSD": "0.00", "heldUSD": "0.00", "rateUSDPerHour": "0.00"}
    if "maxCostUSD" in spec:
        cost["limitUSD"] = spec["maxCostUSD"]
    return {
        "phase": phase,
        "reason": reason,
        "message": message,
        "conditions": conditions,
        "observedGeneration": 1,
        "workers": {"ready": 0, "busy": 0, "idle": 0, "starting": 0, "draining": 0},
        "queue": {"queued": 0, "running": 0},
        "image": {"reference": spec["image"]} if "image" in spec else {},
        "cost": cost,
    }


def _note_app_version(document: Document, app: Document | None) -> None:
    version = value_at(app, "status.version") if app is not None else None
    if version is not None:
        document["status"] = {**document["status"], "appVersion": version}


def _check_cost_cap(old: Document, new: Document) -> None:
    """`FieldImmutable` when the cap is lowered; a cap may be added, raised and taken away."""
    before, after = old["spec"].get("maxCostUSD"), new["spec"].get("maxCostUSD")
    if before is not None and after is not None and parse_money(after) < parse_money(before):
        cause = Cause("spec.maxCostUSD", f"may only be raised; it is {before}")
        raise immutable(FUNCTION, new["metadata"]["name"], [cause])


def _check_stays(old: Document, new: Document, app: Document | None) -> None:
    """Conflict when a deploy changes or adopts a Function whose workers are still leaving: it would go all the same,
    after the deploy has been told that it succeeded. Labels, finalizers and status of it may change."""
    if "deletionTimestamp" not in old["metadata"]:
        return
    owners = {owner["uid"] for owner in old["metadata"].get("ownerReferences", ())}
    if new["spec"] == old["spec"] and (app is None or app["metadata"]["uid"] in owners):
        return
    name = new["metadata"]["name"]
    raise ApiError(
        Reason.CONFLICT,
        f'{FUNCTION.plural}.nodus.dev "{name}" is being deleted and goes as soon as its workers have stopped; nothing '
        "was changed",
        subject=(FUNCTION.plural, name),
        fix=f"Wait until it is gone (`nodus wait function/{name} --for=delete`), then deploy or apply it again.",
    )


async def _check_references(old: Document | None, new: Document, context: AdmissionContext) -> None:
    """`Invalid` when something that the spec newly refers to does not exist.

    What an older version of the Function already referred to is not asked for again, so that a Function whose Secret
    was deleted can still be stopped.
    """
    known = {(kind, name) for kind, name, _ in _references(old["spec"])} if old is not None else set()
    causes = await _python_problems(old, new, context)
    for kind, name, field in _references(new["spec"]):
        if (kind, name) in known:
            continue
        if kind == "blob":
            found = await context.lookup.blob_exists(digest_of(name))
        else:
            found = await context.lookup.get(kind, name) is not None
        if not found:
            what = "a blob that was uploaded to" if kind == "blob" else f"a {kind} of"
            causes.append(Cause(field, f'must name {what} the project; "{name}" does not exist', NOT_FOUND))
    if causes:
        raise invalid(FUNCTION.plural, new["metadata"]["name"], causes)


async def _check_account(old: Document | None, new: Document, context: AdmissionContext) -> None:
    """403 when the caller decides what code acts as a ServiceAccount that may do more than the caller itself."""
    name = new["spec"].get("serviceAccountName")
    if name is None or (old is not None and _acting(old["spec"]) == _acting(new["spec"])):
        return
    account = await context.lookup.get("ServiceAccount", name)
    if account is not None:
        check_given(context, account["spec"].get("scopes", ()))


def _acting(spec: Document) -> Document:
    """The part of a spec that decides what its workers do; whoever starts, stops or scales them need not be as able."""
    return {name: part for name, part in spec.items() if name not in ("state", "scaling")}


async def _check_variables(old: Document | None, new: Document, context: AdmissionContext) -> None:
    """`SecretValueInEnv` when a new literal value is one that a Secret keeps: everybody who may read the Function would
    read it, and so would every backup and log of it."""
    before = set(_literals(old["spec"]).values()) if old is not None else set()
    literals = _literals(new["spec"])
    found = await context.lookup.secrets_holding(set(literals.values()) - before)
    causes = tuple(
        Cause(field, f'is the value of key "{found[value][1]}" of the Secret "{found[value][0]}"')
        for field, value in literals.items()
        if value in found
    )
    if causes:
        name = new["metadata"]["name"]
        secret, key = found[literals[causes[0].field]]
        raise ApiError(
            Reason.SECRET_VALUE_IN_ENV,
            f'{FUNCTION.plural}.nodus.dev "{name}" would show the value of a Secret: {told(causes)}',
            causes=causes,
            fix=f"Give the variable `valueFrom: {{secretKeyRef: {{name: {secret}, key: {key}}}}}` instead of `value`.",
            subject=(FUNCTION.plural, name),
        )


def _literals(spec: Document) -> dict[str, str]:
    """The values of variables that are written down in a spec, by field."""
    return {f"{field}.value": variable["value"] for field, variable in _variables(spec) if "value" in variable}


def _variables(spec: Document) -> Iterator[tuple[str, Document]]:
    """Every variable of a spec by field, those of what runs beside the worker included."""
    for index, variable in enumerate(spec.get("env", ())):
        yield f"spec.env[{index}]", variable
    for number, sidecar in enumerate(spec.get("sidecars", ())):
        for index, variable in enumerate(sidecar.get("env", ())):
            yield f"spec.sidecars[{number}].env[{index}]", variable


async def _python_problems(old: Document | None, new: Document, context: AdmissionContext) -> list[Cause]:
    """An Image object must hold the Python that the Function asks for, as far as it is known."""
    paths = ("spec.imageRef", "spec.python")
    if old is not None and all(value_at(old, path) == value_at(new, path) for path in paths):
        return []
    name, python = new["spec"].get("imageRef"), new["spec"]["python"]
    image = await context.lookup.get("Image", name) if name else None
    if image is None or value_at(image, "status.python") in (None, python):
        return []
    return [Cause("spec.imageRef", f"must hold the Python of `spec.python`, which is {python}")]


def _references(spec: Document) -> Iterator[tuple[str, str, str]]:
    """(kind or "blob", name, field) of everything that a spec refers to."""
    if "blob" in spec["code"]:
        yield "blob", spec["code"]["blob"], "spec.code.blob"
    if "imageRef" in spec:
        yield "Image", spec["imageRef"], "spec.imageRef"
    if "serviceAccountName" in spec:
        yield "ServiceAccount", spec["serviceAccountName"], "spec.serviceAccountName"
    for index, mount in enumerate(spec.get("secrets", ())):
        yield "Secret", mount["name"], f"spec.secrets[{index}].name"
    for field, variable in _variables(spec):
        reference = variable.get("valueFrom", {}).get("secretKeyRef")
        if reference:
            yield "Secret", reference["name"], f"{field}.valueFrom.secretKeyRef.name"


def _image_cell(document: Document, now: datetime) -> str | int:
    spec = document["spec"]
    return str(spec.get("image") or spec.get("imageRef") or NOTHING)


def _gpu_cell(document: Document, now: datetime) -> str | int:
    gpu = value_at(document, "spec.resources.gpu")
    return f"{'|'.join(gpu['type'])}:{gpu['count']}" if gpu else NOTHING


def _app_cell(document: Document, now: datetime) -> str | int:
    return str(document["metadata"].get("labels", {}).get(APP_LABEL, NOTHING))


def _uses(path: str) -> Callable[[Document], bool]:
    """Whether a spec has something other than an empty list at a dotted path."""
    return lambda spec: bool(value_at(spec, path))


UNOFFERED = (
    Unoffered("spec.cluster", _uses("cluster"), "Leave `cluster` out; each call runs on one machine."),
    Unoffered("spec.volumes", _uses("volumes"), "Leave `volumes` out; pass data as arguments and results."),
    Unoffered("spec.connections", _uses("connections"), "Leave `connections` out; use Secrets."),
    Unoffered(
        "spec.resources.gpu",
        lambda spec: "gpu" in spec["resources"] and not are_offered(spec["resources"]["gpu"]),
        "Leave `gpu` out, or have the operator offer such accelerators (`accelerators_offered`).",
        has_price=True,
    ),
    Unoffered("spec.placement.pool", _uses("placement.pool"), "Leave `pool` out; workers run on this host."),
    Unoffered("spec.placement.dedicated", _uses("placement.dedicated"), "Leave `dedicated` out."),
    Unoffered("spec.placement.community", _uses("placement.community"), "Leave `community` out."),
    Unoffered("spec.image", lambda spec: "image" in spec and not is_offered(spec["image"]), CATALOG_ADVICE),
    Unoffered("spec.imagePullSecrets", _uses("imagePullSecrets"), "Leave it out; images of the catalog are public."),
    Unoffered(
        "spec.args",
        lambda spec: bool(spec.get("args")) and not spec.get("command"),
        "Set `command` as well; the public worker takes no arguments.",
    ),
    Unoffered(
        "spec.sidecars.image",
        lambda spec: any("image" in one and not is_offered(one["image"]) for one in spec.get("sidecars", ())),
        f"Leave it out to use the image of the worker. {CATALOG_ADVICE}",
    ),
    Unoffered(
        "spec.recovery.continuity",
        lambda spec: spec["recovery"]["continuity"] == "Checkpointed",
        "Use Ephemeral; a call that loses its worker starts again.",
    ),
)

FUNCTION = Kind(
    kind="Function",
    plural="functions",
    uid_prefix="fn",
    scope=Scope.PROJECT,
    verbs=ALL_VERBS,
    description="A Python function served by a pool of warm workers; calling it creates FunctionCalls.",
    spec=FunctionSpec,
    status=FunctionStatus,
    columns=(
        NAME_COLUMN,
        PHASE_COLUMN,
        Column("Ready", text_at("status.workers.ready", 0), "Workers that take calls.", type="integer"),
        Column("Queued", text_at("status.queue.queued", 0), "Calls that wait for a worker.", type="integer"),
        Column("Running", text_at("status.queue.running", 0), "Calls on a worker.", type="integer"),
        Column("$/H", text_at("status.cost.rateUSDPerHour", "0.00"), "What the running workers cost an hour."),
        Column("Spend", text_at("status.cost.totalUSD", "0.00"), "What the Function has cost, in USD."),
        AGE_COLUMN,
        Column("App", _app_cell, "The App it is a member of.", priority=1),
        Column("Image", _image_cell, "What its workers are started from.", priority=1),
        Column("GPU", _gpu_cell, "Accelerators of each worker.", priority=1),
        Column("Min", text_at("spec.scaling.minWorkers"), "Workers kept without calls.", type="integer", priority=1),
        Column("Max", text_at("spec.scaling.maxWorkers"), "Most workers at once.", type="integer", priority=1),
    ),
    short_names=("fn",),
    selectable_fields=("spec.maxCostUSD", "spec.state", "status.phase", "status.reason"),
    unoffered=UNOFFERED,
    scale=ScalePaths(wanted="spec.scaling.minWorkers", observed="status.workers.ready"),
    subresources=(
        Subresource("log", ("get",), "What the workers printed."),
        Subresource(
            "calls", ("create",), "Create many calls at once.", kind="FunctionCallList", scope="functioncalls:write"
        ),
        Subresource(
            "claims",
            ("create",),
            "How workers take calls and report them.",
            kind="FunctionClaim",
            scope="functions:claim",
        ),
        Subresource(
            "cancels",
            ("create",),
            "How the runtime around a worker hears of cancels and tells what has stopped.",
            kind="FunctionCancels",
            scope="functions:claim",
        ),
        Subresource(
            "charges",
            ("get",),
            "How its cost came about: calls, warm workers, starts and stops, worked out once more from the ledger.",
            kind="FunctionCharges",
            status=FunctionChargesStatus,
        ),
    ),
    deletion_finalizer="nodus.dev/workers",
    strategy=FunctionStrategy(),
    scope_resource="functions",
)

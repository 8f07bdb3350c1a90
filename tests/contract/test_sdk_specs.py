"""What the public SDK sends is understood: its own code builds the bodies."""

from __future__ import annotations

import base64
import sys
from typing import Any

import nodus
import pytest
from nodus import _spec
from nodus.functions import FunctionOptions, _Function

from controlplane.errors import ApiError, Reason
from controlplane.kinds.egress import EgressPolicy, egress_policy
from controlplane.kinds.registry import KINDS
from controlplane.machinery.documents import document_for_create
from controlplane.machinery.kind import Document
from controlplane.machinery.validation import validated_spec
from tests.fixtures.admission import BLOB, DIGEST, ProjectInMemory, causes

FUNCTION = KINDS["Function"]
PYTHON = f"3.{sys.version_info.minor}"


def square(x: int) -> int:
    return x * x


class Embedder:
    def embed(self) -> int:
        return 1


async def built(user_cls: type | None = None, **options: Any) -> Document:
    """The spec that `@app.function(**options)` or `@app.cls` posts."""
    raw = None if user_cls else square
    function = _Function(raw=raw, options=FunctionOptions(**options), user_cls=user_cls)
    unused: Any = None  # A client is asked only for what must be uploaded first.
    spec: Document = await function._spec(unused, "default", BLOB, FunctionOptions())
    return spec


async def test_a_function_without_options_is_admitted() -> None:
    spec = await built()
    assert spec == {
        "image": f"nodus/python:{PYTHON}",
        "code": {"blob": BLOB, "module": spec["code"]["module"], "qualname": "square"},
        "python": PYTHON,
    }
    stored = validated_spec(FUNCTION, spec)
    assert {name: stored[name] for name in spec} == spec


async def test_a_class_is_admitted() -> None:
    assert validated_spec(FUNCTION, await built(user_cls=Embedder))["code"]["cls"]["name"] == "Embedder"


@pytest.mark.parametrize(
    ("options", "stored"),
    [
        ({"cpu": 0.5, "memory": 512, "ephemeral_disk": 2048}, {"cpu": "500m", "memory": "512Mi", "disk": "2Gi"}),
        ({"cpu": 2, "memory": "2Gi"}, {"cpu": "2", "memory": "2Gi", "disk": "10Gi"}),
    ],
)
async def test_resources_are_admitted(options: dict[str, Any], stored: Document) -> None:
    assert validated_spec(FUNCTION, await built(**options))["resources"] == stored


async def test_every_option_that_is_offered_is_admitted_and_kept() -> None:
    spec = await built(
        env={"A": "1", "B": ""},
        timeout=60,
        retries=_spec.Retries(max_retries=2, initial_delay=0.5, max_delay=30, backoff_coefficient=1.5),
        interruptible=False,
        region=["us", "eu"],
        profile="Cost",
        max_cost=5,
        min_workers=1,
        max_workers=3,
        scaledown_window=30,
        target_concurrency=2,
        network=nodus.Egress.deny(),
    )
    stored = validated_spec(FUNCTION, spec)
    assert stored["timeout"] == "60s"
    assert stored["retries"] == {
        "maxRetries": 2,
        "backoffCoefficient": 1.5,
        "initialDelay": "0.5s",
        "maxDelay": "30s",
    }
    assert stored["scaling"] == {
        "minWorkers": 1,
        "maxWorkers": 3,
        "scaledownWindow": "30s",
        "targetConcurrency": 2,
    }
    assert stored["placement"]["interruptible"] == "Never"
    assert stored["maxCostUSD"] == "5.00"
    assert validated_spec(FUNCTION, {**stored, **spec}) == stored


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"gpu": "H100:2"}, "spec.resources.gpu"),
        ({"gpu": ["H100!", "A100"]}, "spec.resources.gpu"),
    ],
)
async def test_an_option_that_is_not_offered_is_unsupported_and_never_invalid(
    options: dict[str, Any], field: str
) -> None:
    with pytest.raises(ApiError) as error:
        validated_spec(FUNCTION, await built(**options))
    assert set(causes(error, Reason.UNSUPPORTED)) == {field}


@pytest.mark.parametrize("presets", [["python-packages"], ["npm-packages", "python-packages"]])
async def test_presets_of_packages_are_left_to_the_node_which_alone_knows_its_indexes(presets: list[str]) -> None:
    stored = validated_spec(FUNCTION, await built(network=nodus.Egress.allow("a.example.org", presets=presets)))
    assert egress_policy(stored) == EgressPolicy(policy="AllowList", hosts=["a.example.org"], presets=tuple(presets))


@pytest.mark.parametrize(
    ("network", "policy"),
    [
        (None, EgressPolicy(policy="Open")),
        (nodus.Egress.open(), EgressPolicy(policy="Open")),
        (nodus.Egress.deny(), EgressPolicy(policy="Deny")),
        (
            nodus.Egress.allow("*.github.com", "huggingface.co", presets=["huggingface"]),
            EgressPolicy(
                policy="AllowList",
                hosts=["*.github.com", "huggingface.co", "*.huggingface.co", "hf.co", "*.hf.co"],
            ),
        ),
    ],
)
async def test_each_egress_of_the_sdk_means_what_it_says(network: nodus.Egress | None, policy: EgressPolicy) -> None:
    stored = validated_spec(FUNCTION, await built(network=network) if network else await built())
    assert egress_policy(stored) == policy


FULL_FUNCTION: Document = {
    "kind": "Function",
    "apiVersion": "nodus.dev/v1",
    "metadata": {
        "name": "hello-64d6f0-square",
        "namespace": "default",
        "labels": {"sdk.nodus.dev/app": "hello-64d6f0"},
        "annotations": {"nodus.dev/last-applied": "{}"},
    },
    "spec": {
        "imageRef": "img-9b67a512d3c2fd91d0da",
        "code": {"blob": BLOB, "module": "app", "qualname": "square"},
        "python": "3.11",
        "resources": {"gpu": {"count": 2, "type": ["H100"]}, "cpu": "1", "memory": "512Mi", "disk": "2Gi"},
        "env": [{"name": "X", "value": "y"}],
        "secrets": ["hello-64d6f0-06af82f0", "hf"],
        "volumes": [{"volume": "cache", "mountPath": "/cache"}],
        "network": {"egress": {"policy": "AllowList", "allow": ["files.example.org"], "presets": ["huggingface"]}},
        "timeout": "60s",
        "retries": {"maxRetries": 2, "backoffCoefficient": 2.0, "initialDelay": "1s", "maxDelay": "60s"},
        "recovery": {"continuity": "Checkpointed", "checkpoint": {"paths": ["/nodus/state"]}},
        "placement": {"interruptible": "Allow", "regions": ["us"], "profile": "Cost"},
        "maxCostUSD": "5.00",
        "scaling": {"minWorkers": 0, "maxWorkers": 3, "scaledownWindow": "30s", "targetConcurrency": 2},
    },
}


def test_a_function_with_every_option_is_understood_to_the_last_field() -> None:
    with pytest.raises(ApiError) as error:
        document_for_create(FUNCTION, FULL_FUNCTION, project="default")
    assert set(causes(error, Reason.UNSUPPORTED)) == {
        "spec.resources.gpu",
        "spec.volumes",
        "spec.recovery.continuity",
    }


async def test_the_objects_of_a_run_are_admitted_in_their_order(memory: ProjectInMemory) -> None:
    memory.blobs.add(DIGEST)
    app = {
        "kind": "App",
        "metadata": {
            "name": "hello-64d6f0",
            "namespace": "default",
            "annotations": {"nodus.dev/last-applied": "{}"},
        },
        "spec": {
            "ephemeral": True,
            "source": {"blob": BLOB},
            "renewTime": "2026-11-29T11:17:42Z",
            "description": "demo",
        },
        "apiVersion": "nodus.dev/v1",
    }
    secret = {
        "metadata": {"name": "hello-64d6f0-06af82f0", "labels": {"sdk.nodus.dev/app": "hello-64d6f0"}},
        "spec": {"type": "Opaque", "stringData": {"TOK": "v"}},
    }
    offered = ("code", "python", "env", "timeout", "retries", "placement", "maxCostUSD", "scaling")
    function = {
        **FULL_FUNCTION,
        "spec": {
            **{field: FULL_FUNCTION["spec"][field] for field in offered},
            "image": "nodus/python:3.11",
            "secrets": ["hello-64d6f0-06af82f0"],
        },
    }
    call = {
        "kind": "FunctionCall",
        "metadata": {
            "name": "hello-64d6f0-square-c1e31",
            "generateName": "hello-64d6f0-square-",
            "namespace": "default",
        },
        "spec": {
            "function": "hello-64d6f0-square",
            "input": {"encoding": "Pickle", "inline": base64.b64encode(b"\x80\x04N.").decode()},
            "session": "0123456789abcdef0123456789abcdef",
            "mapId": "0123456789abcdef0123",
            "mapIndex": 0,
        },
        "apiVersion": "nodus.dev/v1",
    }
    await memory.create("App", app)
    await memory.create("Secret", secret)
    stored = await memory.create("Function", function)
    assert stored["spec"]["secrets"] == [{"name": "hello-64d6f0-06af82f0"}]
    assert (await memory.create("FunctionCall", call))["metadata"]["labels"]["nodus.dev/app"] == "hello-64d6f0"


async def test_an_image_with_build_steps_is_understood_and_built_but_for_debian_packages(
    memory: ProjectInMemory,
) -> None:
    image: dict[str, Any] = {
        "kind": "Image",
        "metadata": {"name": "img-9b67a512d3c2fd91d0da", "labels": {"sdk.nodus.dev/app": "hello-64d6f0"}},
        "spec": {
            "base": "nodus/python:3.11",
            "python": "3.11",
            "steps": [
                {"pipInstall": {"packages": ["numpy"], "extraIndexURLs": ["https://example.org/simple"]}},
                {"env": {"A": "1"}},
                {"run": ["echo hi"]},
                {"aptInstall": ["git"]},
                {"workdir": "/w"},
            ],
        },
    }
    with pytest.raises(ApiError) as error:
        document_for_create(KINDS["Image"], image, project="default")
    assert set(causes(error, Reason.UNSUPPORTED)) == {"spec.steps.aptInstall"}
    steps = [step for step in image["spec"]["steps"] if "aptInstall" not in step]
    stored = await memory.create("Image", {**image, "spec": {**image["spec"], "steps": steps}})
    assert (stored["spec"]["steps"], stored["status"]["phase"]) == (steps, "Pending")

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.kinds.accelerators import offer_accelerators
from controlplane.kinds.registry import KINDS
from controlplane.machinery.kind import Document
from controlplane.machinery.validation import judged_spec, validated_spec
from tests.fixtures.admission import BLOB, causes, function_spec

FUNCTION = KINDS["Function"]


def test_a_minimal_function_is_stored_with_every_default() -> None:
    assert validated_spec(FUNCTION, function_spec()) == {
        "code": {"module": "app", "qualname": "square"},
        "python": "3.11",
        "image": "nodus/python:3.11",
        "resources": {"cpu": "1", "memory": "1Gi", "disk": "10Gi"},
        "placement": {"interruptible": "Allow", "profile": "Balanced", "queueTimeout": "86400s"},
        "recovery": {
            "continuity": "Ephemeral",
            "maxAttempts": 3,
            "minProgressDuration": "120s",
            "onInterruption": "Resume",
        },
        "timeout": "300s",
        "retries": {"maxRetries": 0, "backoffCoefficient": 2.0, "initialDelay": "1s", "maxDelay": "60s"},
        "scaling": {"minWorkers": 0, "maxWorkers": 10, "scaledownWindow": "60s", "targetConcurrency": 1},
        "state": "Running",
    }


def test_an_image_object_leaves_the_image_unset() -> None:
    assert "image" not in validated_spec(FUNCTION, function_spec(imageRef="img-1"))


def test_an_image_object_excludes_an_image() -> None:
    _, [cause] = judged_spec(FUNCTION, function_spec(imageRef="img-1", image="nodus/python:3.11"))
    assert (cause.field, cause.reason) == ("spec.imageRef", "FieldValueForbidden")


SHORT_FORMS = [
    ("secrets", ["hf", {"name": "b", "version": 2}], [{"name": "hf"}, {"name": "b", "version": 2}]),
    ("timeout", "1m", "60s"),
    ("maxCostUSD", "5", "5.00"),
    ("maxCostUSD", "5.000", "5.00"),
    ("resources", {"cpu": 0.5, "memory": "1024Mi"}, {"cpu": "500m", "memory": "1Gi", "disk": "10Gi"}),
    ("env", [{"name": "A"}, {"name": "B", "value": ""}], [{"name": "A"}, {"name": "B", "value": ""}]),
    ("network", {"egress": {"policy": "Deny"}}, {"egress": {"policy": "Deny"}}),
    ("network", {"egress": {"policy": "Open"}}, {"egress": {"policy": "Open"}}),
    ("recovery", {"checkpoint": {"interval": "5m"}}, None),
]


@pytest.mark.parametrize(("field", "sent", "stored"), SHORT_FORMS)
def test_a_value_is_stored_in_its_canonical_form(field: str, sent: Any, stored: Any) -> None:
    spec = validated_spec(FUNCTION, function_spec(**{field: sent}))
    if stored is not None:
        assert spec[field] == stored
    assert validated_spec(FUNCTION, spec) == spec


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("H100", {"type": ["H100"], "count": 1}),
        ("H100:8", {"type": ["H100"], "count": 8}),
        ("H100!", {"type": ["H100"], "count": 1, "exact": True}),
        ("H100!:2", {"type": ["H100"], "count": 2, "exact": True}),
        ("H100:2!", {"type": ["H100"], "count": 2, "exact": True}),
        (" RTX 4090 ", {"type": ["RTX 4090"], "count": 1}),
        ("rtx-4090-24g", {"type": ["rtx-4090-24g"], "count": 1}),
    ],
)
def test_a_gpu_in_words_becomes_the_object(text: str, request_: Document) -> None:
    spec, found = judged_spec(FUNCTION, function_spec(resources={"gpu": text}))
    assert not found
    assert spec["resources"]["gpu"] == request_


def at(path: str, value: Any) -> Document:
    """A minimal spec with one value at a dotted path."""
    spec = function_spec()
    holder = spec
    *steps, last = path.split(".")
    for step in steps:
        holder = holder.setdefault(step, {})
    holder[last] = value
    return spec


EDGES: list[tuple[str, list[Any], list[Any]]] = [
    ("code.module", ["app", "a.b.c", "_x"], ["", "1a", "a-b", "a.", ".a", "a b", 5, None]),
    ("code.qualname", ["f", "C.m"], ["", "f()", "C.<locals>.f"]),
    ("code.blob", [BLOB], ["sha256:0", BLOB.upper(), "0" * 64, BLOB + "0"]),
    ("code.cls", [{"name": "C"}, {"name": "C", "methods": ["m"] * 128}], [{}, {"name": "C", "methods": ["m"] * 129}]),
    ("python", ["3.10", "3.11", "3.12", "3.13"], ["3.9", "3.14", "3", "3.11.2", 3.11]),
    ("image", ["nodus/python:3.11", "nodus/python"], ["", "a b", "nodus/python:3.12", "x" * 513]),
    ("imageRef", ["img-1"], ["Img", ""]),
    ("imagePullSecrets", [[], ["a"] * 8], [["a"] * 9, ["A"], "a"]),
    ("command", [["a"]], [[], "a", [1], ["a"] * 257]),
    (
        "network.egress",
        [
            {"policy": "Open"},
            {"policy": "AllowList", "allow": ["*.example.org", "a.b"] * 64},
            {"policy": "AllowList", "presets": ["huggingface"]},
        ],
        [
            {"policy": "Closed"},
            {"policy": "Deny", "allow": ["a.b"]},
            {"policy": "Open", "presets": ["huggingface"]},
            {"policy": "AllowList", "presets": ["huggingfaces"]},
            {"allow": ["a.b"]},
            {"policy": "AllowList", "allow": ["a.b"] * 129},
            {"policy": "AllowList", "allow": ["*"]},
            {"policy": "AllowList", "allow": ["http://a.b"]},
            {"policy": "AllowList", "allow": ["a.*.b"]},
        ],
    ),
    ("initCommand", [{"command": ["a"], "timeout": "30m"}], [{"command": ["a"], "timeout": "31m"}, {"command": []}]),
    (
        "sidecars",
        [[{"name": "s", "command": ["a"], "startupTimeout": "30m"}]],
        [[{"name": "s"}], [{"command": ["a"]}], [{"name": "s", "command": ["a"], "startupTimeout": "31m"}]],
    ),
    ("sidecars", [[{"name": "s", "command": ["a"]}]], [[{"name": "s", "command": ["a"]}] * 2]),
    ("workingDir", ["/", "/a/b"], ["a", "", "/a/../b"]),
    ("env", [[], [{"name": "A", "value": "x" * 32_768}]], [[{"name": "A", "value": "x" * 32_769}], [{"name": ""}]]),
    ("env", [[{"name": f"A{n}"} for n in range(512)]], [[{"name": f"A{n}"} for n in range(513)]]),
    (
        "env",
        [[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]],
        [
            [{"name": "A"}, {"name": "A"}],
            [{"name": "NODUS_API_KEY"}],
            [{"name": "1A"}],
            [{"name": "A", "value": 1}],
            [{"name": "A", "valueFrom": {}}],
            [{"name": "A", "value": "", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
            [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}],
        ],
    ),
    ("secrets", [[], ["a", {"name": "b", "version": 1}]], [["a", "a"], ["A"], [{"name": "a", "version": 0}], [1]]),
    ("resources.cpu", ["1m", "1000", 2, 0.5], ["0", "-1", "1001", True, "x"]),
    ("resources.memory", ["1", "64Ti"], ["0", "65Ti", ""]),
    ("resources.disk", ["1Gi"], ["0", []]),
    ("resources.nodes", [1], [0, 2, 1.0]),
    ("serviceAccountName", ["ci"], ["CI", ""]),
    ("placement.interruptible", ["Never", "Allow", "Prefer"], ["never", True]),
    ("placement.profile", ["Balanced", "Cost", "Speed"], ["Fast"]),
    ("placement.regions", [[], ["us"]], ["us", [""]]),
    ("placement.maxRateUSDPerHour", ["0", "1.5"], [1.5, "-1"]),
    ("placement.queueTimeout", ["0s", "24h"], ["-1s", 5]),
    ("recovery.maxAttempts", [1, 32], [0, 33]),
    ("recovery.continuity", ["Restartable", "Ephemeral"], ["None"]),
    ("recovery.onInterruption", ["Resume", "Fail"], ["Stop"]),
    ("recovery.minProgressDuration", ["0s", "2m"], ["x"]),
    (
        "recovery.checkpoint",
        [
            {"interval": "auto"},
            {"interval": "1m"},
            {"interval": "6h"},
            {"paths": ["/a"] * 64},
            {"maxSize": "2Ti"},
            {"format": "Dcp", "integration": "HFTrainer", "retainAfterFinish": "168h"},
        ],
        [
            {"interval": "59s"},
            {"interval": "6h1s"},
            {"interval": "Auto"},
            {"paths": []},
            {"paths": ["/a"] * 65},
            {"paths": ["a"]},
            {"maxSize": "3Ti"},
        ],
    ),
    ("timeout", ["1s", "24h", "1.5s"], ["0.9s", "24h1s", "0", 300, ""]),
    ("retries.maxRetries", [0, 10], [-1, 11, "1", True]),
    ("retries.backoffCoefficient", [1, 10, 1.5], [0.99, 10.01, "2"]),
    ("retries.initialDelay", ["0s", "24h"], ["25h", 1]),
    ("retries.maxDelay", ["0s", "24h"], ["25h"]),
    ("scaling.minWorkers", [0, 10], [-1, 11, 1001]),
    ("scaling.maxWorkers", [1, 1000], [0, 1001]),
    ("scaling", [{"minWorkers": 1000, "maxWorkers": 1000}], [{"minWorkers": 2, "maxWorkers": 1}, []]),
    ("scaling.scaledownWindow", ["0s", "20m"], ["20m1s"]),
    ("scaling.targetConcurrency", [1, 1000], [0, 1001]),
    ("maxCostUSD", ["0", "999999999.999999"], [5, 5.0, "-1", "1.0000001", "1000000000"]),
    ("state", ["Running", "Stopped"], ["Cancelled", "stopped", ""]),
]


@pytest.mark.parametrize(("path", "good", "bad"), EDGES, ids=[edge[0] for edge in EDGES])
def test_each_field_takes_exactly_what_is_within_its_bounds(path: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        _, found = judged_spec(FUNCTION, at(path, value))
        assert not found, value
    for value in bad:
        _, found = judged_spec(FUNCTION, at(path, value))
        assert found, value
        assert all(cause.field.startswith(f"spec.{path}") for cause in found), found


UNOFFERED_EDGES: list[tuple[str, list[Any], list[Any]]] = [
    (
        "volumes",
        [[{"volume": "v", "mountPath": "/data", "readOnly": True, "revision": 1}]],
        [
            [{"volume": "v", "mountPath": path}]
            for path in ("/", "//", "data", "/proc", "/sys/x", "/dev/", "/run/nodus/a", "/nodus/code", "/a/../b")
        ]
        + [
            [{"volume": "v", "mountPath": "/a", "revision": 1}],
            [{"volume": "v", "mountPath": "/a"}, {"volume": "w", "mountPath": "/a/"}],
            [{"volume": "V", "mountPath": "/a"}],
        ],
    ),
    ("connections", [["a"]], [["A"], "a"]),
    (
        "resources.gpu",
        ["H100", {"type": ["a"] * 8, "count": 8, "minMemory": "80Gi", "interconnect": "NVLink"}],
        [
            "H100:0",
            "H100:3",
            ":2",
            "",
            {"type": []},
            {"type": ["a"] * 9},
            {"type": ["a"], "count": 0},
            {"type": ["a"], "count": True},
            {"count": 1},
        ],
    ),
    ("placement.pool", ["p"], ["P", ""]),
    ("placement.dedicated", [True], [False, 1]),
    ("cluster", [{"size": 2, "launcher": "Plain", "network": "Colocated", "transport": "Direct"}], [{"size": 1}]),
]


@pytest.mark.parametrize(("path", "good", "bad"), UNOFFERED_EDGES)
def test_what_is_not_offered_is_still_told_from_what_is_wrong(path: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        with pytest.raises(ApiError) as error:
            validated_spec(FUNCTION, at(path, value))
        assert error.value.reason is Reason.UNSUPPORTED, value
    for value in bad:
        with pytest.raises(ApiError) as error:
            validated_spec(FUNCTION, at(path, value))
        assert error.value.reason is Reason.INVALID, value


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("image", "docker.io/library/python:3.11", "spec.image"),
        ("image", "nodus/cuda:12", "spec.image"),
        ("args", ["x"], "spec.args"),
        ("imagePullSecrets", ["x"], "spec.imagePullSecrets"),
        ("recovery", {"continuity": "Checkpointed"}, "spec.recovery.continuity"),
        ("placement", {"community": True}, "spec.placement.community"),
        ("sidecars", [{"name": "s", "command": ["a"], "image": "redis:7"}], "spec.sidecars.image"),
    ],
)
def test_what_is_not_offered_names_its_field_and_another_way(field: str, value: Any, told: str) -> None:
    with pytest.raises(ApiError) as error:
        validated_spec(FUNCTION, function_spec(**{field: value}))
    found = causes(error, Reason.UNSUPPORTED)
    assert set(found) == {told}
    assert error.value.fix in found[told].message


@pytest.fixture
def offered() -> Iterator[None]:
    """A deployment with two kinds of accelerators."""
    offer_accelerators(["H100", "NVIDIA A100-SXM4-80GB"])
    yield
    offer_accelerators(())


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("gpu", ["H100", "h100:2", "B200", "A100", "a100 80gb"])
def test_an_accelerator_that_is_offered_may_be_asked_for(gpu: str) -> None:
    spec = function_spec(resources={"gpu": {"type": ["T4", gpu.partition(":")[0]], "count": 1}})
    if gpu == "B200":
        with pytest.raises(ApiError) as error:
            validated_spec(FUNCTION, spec)
        assert set(causes(error, Reason.UNSUPPORTED)) == {"spec.resources.gpu"}
    else:
        assert validated_spec(FUNCTION, spec)["resources"]["gpu"]["count"] == 1


@pytest.mark.parametrize("field", ["volumes", "connections", "sidecars", "imagePullSecrets", "env", "secrets"])
def test_an_empty_list_of_what_is_not_offered_is_no_use_of_it(field: str) -> None:
    assert validated_spec(FUNCTION, function_spec(**{field: []}))


def test_cancelling_a_function_is_told_apart_from_stopping_it() -> None:
    _, [cause] = judged_spec(FUNCTION, function_spec(state="Cancelled"))
    assert cause.reason == "FieldValueNotSupported"
    assert '"Stopped"' in cause.message

"""A log that is gone with its ephemeral App says so."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.store.contract import Key, Reads, Tx
from tests.controlplane.logs.conftest import Logs
from tests.fixtures.plane import Plane, PutObject


class Remove:
    """Takes objects away, as the end of their deletion does."""

    def __init__(self, *keys: Key) -> None:
        self._keys = keys

    def reads(self) -> Reads:
        return Reads(keys=self._keys)

    def apply(self, tx: Tx) -> None:
        for key in self._keys:
            tx.remove(key)


def stored(key: Key, **spec: Any) -> PutObject:
    metadata = {"name": key.name, "namespace": key.project, "uid": f"uid_{key.kind}_{key.name}"}
    labels = {"nodus.dev/app": "hello-x1"} if key.kind != "App" else {}
    document = {"apiVersion": "nodus.dev/v1", "kind": key.kind, "metadata": {**metadata, "labels": labels}}
    return PutObject(key, {**document, "spec": spec, "status": {"phase": "Running"}})


@pytest.mark.parametrize("ephemeral", [True, False])
async def test_the_log_of_an_ephemeral_app_that_ended_tells_how_an_app_is_kept(
    logs: Logs, plane: Plane, ephemeral: bool
) -> None:
    app = Key("App", "default", "default", "hello-x1")
    function, call = (Key(kind, "default", "default", "hello-x1-f") for kind in ("Function", "FunctionCall"))
    await plane.core.writer.write(stored(app, ephemeral=ephemeral))
    await plane.core.writer.write(stored(function))
    await plane.core.writer.write(stored(call, function=function.name))
    await plane.core.writer.write(Remove(call, function, app))
    for key in (app, function, call):
        with pytest.raises(ApiError) as refused:
            await logs.text(key)
        assert refused.value.reason is Reason.NOT_FOUND
        assert ("which was ephemeral" in refused.value.message) is ephemeral
        assert ("nodus deploy" in refused.value.fix) is ephemeral
    with pytest.raises(ApiError) as refused:
        await logs.text(Key("Function", "default", "default", "never-was"))
    assert refused.value.message == 'functions.nodus.dev "never-was" not found'

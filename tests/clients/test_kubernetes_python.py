"""The Python client `kubernetes`: its API of custom objects, its dynamic client, and its watches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient

from tests.fixtures.clients import ClientSide

GROUP = ("nodus.dev", "v1")
# Parts of the client carry no types.
_WATCH: Any = watch.Watch
_DYNAMIC: Any = DynamicClient


@pytest.fixture
def connection(client_side: ClientSide) -> Iterator[client.ApiClient]:
    new_client: Any = config.new_client_from_config
    with new_client(str(client_side.kubeconfig)) as made:
        yield made


async def test_custom_objects_live_and_die(client_side: ClientSide, connection: client.ApiClient) -> None:
    await asyncio.to_thread(_story, client.CustomObjectsApi(connection), (*GROUP, client_side.project, "apps"))


def _story(api: Any, apps: tuple[str, ...]) -> None:
    for name in ("a", "b"):
        body = {"apiVersion": "nodus.dev/v1", "kind": "App", "metadata": {"name": name, "labels": {"team": "x"}}}
        assert api.create_namespaced_custom_object(*apps, body)["metadata"]["uid"].startswith("app_")
    assert api.get_namespaced_custom_object(*apps, "a")["metadata"]["name"] == "a"
    page = api.list_namespaced_custom_object(*apps, limit=1, label_selector="team=x")
    rest = api.list_namespaced_custom_object(
        *apps, limit=1, label_selector="team=x", _continue=page["metadata"]["continue"]
    )
    assert [item["metadata"]["name"] for item in page["items"] + rest["items"]] == ["a", "b"]

    changed = api.patch_namespaced_custom_object(*apps, "a", {"spec": {"description": "new"}})
    assert changed["spec"]["description"] == "new"
    changed["spec"]["description"] = "newer"
    replaced = api.replace_namespaced_custom_object(*apps, "a", changed)
    assert replaced["metadata"]["generation"] == changed["metadata"]["generation"] + 1

    since = page["metadata"]["resourceVersion"]
    seen = []
    watching = _WATCH()
    for event in watching.stream(api.list_namespaced_custom_object, *apps, resource_version=since, timeout_seconds=60):
        seen.append((event["type"], event["object"]["metadata"]["name"]))
        if len(seen) == 2:
            api.delete_namespaced_custom_object(*apps, "b")
        if len(seen) == 3:
            watching.stop()
    assert seen == [("MODIFIED", "a"), ("MODIFIED", "a"), ("DELETED", "b")]

    refusals: dict[int, Callable[[], object]] = {
        404: lambda: api.get_namespaced_custom_object(*apps, "b"),
        409: lambda: api.create_namespaced_custom_object(*apps, {"metadata": {"name": "a"}, "spec": {}}),
        400: lambda: api.list_namespaced_custom_object(*apps, label_selector="a in ("),
    }
    for status, refused in refusals.items():
        with pytest.raises(ApiException) as raised:
            refused()
        assert raised.value.status == status


async def test_the_dynamic_client_finds_its_way_by_discovery(
    client_side: ClientSide, connection: client.ApiClient
) -> None:
    await client_side.api.function("f")

    def story() -> None:
        dynamic = _DYNAMIC(connection, cache_file=str(client_side.home / "discovery"))
        functions = dynamic.resources.get(api_version="nodus.dev/v1", kind="Function")
        assert (functions.name, functions.short_names) == ("functions", ["fn"])
        found = functions.get(name="f", namespace=client_side.project)
        assert found.status.phase == "Running"
        body = {"spec": {"timeout": "30s"}}
        merge = {"content_type": "application/merge-patch+json"}
        functions.patch(name="f", namespace=client_side.project, body=body, **merge)
        assert [item.spec.timeout for item in functions.get(namespace=client_side.project).items] == ["30s"]
        event = next(functions.watch(namespace=client_side.project, timeout=60))
        assert (event["type"], event["object"].metadata.name) == ("ADDED", "f")
        # Its default is a strategic merge, which is for built-in kinds only.
        with pytest.raises(ApiException) as raised:
            functions.patch(
                name="f",
                namespace=client_side.project,
                body=body,
                content_type="application/strategic-merge-patch+json",
            )
        assert raised.value.status == 415

    await asyncio.to_thread(story)


async def test_typed_clients_see_projects_as_namespaces_and_may_ask_about_themselves(
    client_side: ClientSide, connection: client.ApiClient
) -> None:
    def story() -> None:
        core: Any = client.CoreV1Api(connection)
        assert client_side.project in [item.metadata.name for item in core.list_namespace().items]
        assert core.list_namespaced_event(client_side.project).items == []
        assert client.VersionApi(connection).get_code().major == "1"
        attributes = client.V1ResourceAttributes(
            group="nodus.dev", resource="functions", verb="create", namespace=client_side.project
        )
        spec = client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes)
        body = client.V1SelfSubjectAccessReview(spec=spec)
        review: Any = client.AuthorizationV1Api(connection).create_self_subject_access_review(body)
        assert review.status.allowed is True
        me: Any = client.AuthenticationV1Api(connection).create_self_subject_review(client.V1SelfSubjectReview())
        assert me.status.user_info.username.startswith("usr_")

    await asyncio.to_thread(story)

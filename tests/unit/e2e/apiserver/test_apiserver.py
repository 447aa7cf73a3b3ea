"""The emulated API server does what a client of the real one leans on."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from apiserver.faults import Fault
from apiserver.server import ApiServer

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
Json = dict[str, Any]


class Client:
    """Plain HTTP with a base address."""

    def __init__(self, api: ApiServer, session: aiohttp.ClientSession) -> None:
        self.api = api
        self.session = session

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        headers = options.pop("headers", {})
        if kind := options.pop("kind", None):
            headers["Content-Type"] = kind
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        async with self.session.request(
            method, self.api.url + path, data=data, headers=headers, **options
        ) as response:
            return response.status, await response.json()

    async def ok(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        status, answer = await self.call(method, path, body, **options)
        assert status < 300, answer
        return answer


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with (
        ApiServer(bookmark_interval_s=0.05) as api,
        aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as session,
    ):
        yield Client(api, session)


def config_map(name: str, **data: str) -> Json:
    return {"metadata": {"name": name}, "data": data}


async def test_an_old_revision_is_a_conflict_and_none_overwrites(client: Client) -> None:
    first = await client.ok("POST", CONFIGMAPS, config_map("a", k="1"))
    changed = {**first, "data": {"k": "2"}}
    await client.ok("PUT", CONFIGMAPS + "/a", changed)
    status, answer = await client.call("PUT", CONFIGMAPS + "/a", changed | {"data": {"k": "3"}})
    assert (status, answer["reason"]) == (409, "Conflict")
    await client.ok("PUT", CONFIGMAPS + "/a", config_map("a", k="blind"))
    assert (await client.ok("GET", CONFIGMAPS + "/a"))["data"] == {"k": "blind"}


async def test_an_update_that_changes_nothing_keeps_the_revision(client: Client) -> None:
    first = await client.ok("POST", CONFIGMAPS, config_map("a", k="1"))
    again = await client.ok("PUT", CONFIGMAPS + "/a", first)
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_delete_preconditions_hold(client: Client) -> None:
    first = await client.ok("POST", CONFIGMAPS, config_map("a"))
    status, _ = await client.call(
        "DELETE", CONFIGMAPS + "/a", {"preconditions": {"uid": "another"}}
    )
    assert status == 409
    meta = first["metadata"]
    right = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
    await client.ok("DELETE", CONFIGMAPS + "/a", {"preconditions": right})
    assert (await client.call("GET", CONFIGMAPS + "/a"))[0] == 404


async def test_a_list_in_pages_shows_one_moment(client: Client) -> None:
    for n in range(5):
        await client.ok("POST", CONFIGMAPS, config_map(f"c{n}"))
    first = await client.ok("GET", CONFIGMAPS + "?limit=2")
    await client.ok("DELETE", CONFIGMAPS + "/c3")
    rest = await client.ok("GET", CONFIGMAPS, params={"continue": first["metadata"]["continue"]})
    names = [item["metadata"]["name"] for item in first["items"] + rest["items"]]
    assert names == ["c0", "c1", "c2", "c3", "c4"]
    again = await client.ok("GET", CONFIGMAPS + "?limit=2")
    client.api.state.compact()
    await client.ok("POST", CONFIGMAPS, config_map("new"))
    client.api.state.compact()
    status, _ = await client.call(
        "GET", CONFIGMAPS, params={"continue": again["metadata"]["continue"]}
    )
    assert status == 410


async def test_a_list_of_an_exact_revision_is_the_past(client: Client) -> None:
    first = await client.ok("POST", CONFIGMAPS, config_map("a", k="1"))
    then = first["metadata"]["resourceVersion"]
    await client.ok("DELETE", CONFIGMAPS + "/a")
    path = f"{CONFIGMAPS}?resourceVersion={then}&resourceVersionMatch=Exact"
    assert len((await client.ok("GET", path))["items"]) == 1
    client.api.state.compact()
    assert (await client.call("GET", path))[0] == 410


async def watch(client: Client, query: str, count: int) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    async with (
        asyncio.timeout(5),
        client.session.get(f"{client.api.url}{CONFIGMAPS}?watch=true&{query}") as response,
    ):
        while len(found) < count:
            event = json.loads(await response.content.readline())
            found.append((event["type"], event["object"].get("metadata", {}).get("name", "")))
    return found


async def test_a_watch_goes_on_from_a_revision_and_a_selector_makes_objects_go(
    client: Client,
) -> None:
    start = client.api.state.revision
    labelled = {"metadata": {"name": "a", "labels": {"x": "1"}}}
    await client.ok("POST", CONFIGMAPS, labelled)
    await client.ok("POST", CONFIGMAPS, config_map("b"))
    await client.ok("PUT", CONFIGMAPS + "/a", config_map("a"))
    seen = await watch(client, f"resourceVersion={start}&labelSelector=x%3D1", 2)
    assert seen == [("ADDED", "a"), ("DELETED", "a")]


async def test_a_watch_takes_whole_seconds_only(client: Client) -> None:
    path = CONFIGMAPS + "?watch=true&timeoutSeconds=240.0"
    assert (await client.call("GET", path))[0] == 400


async def test_a_watch_sends_bookmarks_and_410_after_history_is_gone(client: Client) -> None:
    assert await watch(client, "allowWatchBookmarks=true&resourceVersion=1", 3) != []
    start = client.api.state.revision
    await client.ok("POST", CONFIGMAPS, config_map("a"))
    client.api.state.compact()
    status, answer = await client.call("GET", f"{CONFIGMAPS}?watch=1&resourceVersion={start}")
    assert (status, answer["reason"]) == (410, "Expired")


async def test_a_finalizer_keeps_an_object_until_it_goes(client: Client) -> None:
    await client.ok("POST", CONFIGMAPS, {"metadata": {"name": "a", "finalizers": ["x/y"]}})
    await client.ok("DELETE", CONFIGMAPS + "/a")
    lingering = await client.ok("GET", CONFIGMAPS + "/a")
    assert lingering["metadata"]["deletionTimestamp"]
    lingering["metadata"]["finalizers"] = []
    await client.ok("PUT", CONFIGMAPS + "/a", lingering)
    assert (await client.call("GET", CONFIGMAPS + "/a"))[0] == 404


@pytest.mark.parametrize(
    ("policy", "survives"), [("Background", False), ("Foreground", False), ("Orphan", True)]
)
async def test_what_an_object_owns_goes_with_it_unless_orphaned(
    client: Client, policy: str, survives: bool
) -> None:
    owner = await client.ok("POST", CONFIGMAPS, config_map("owner"))
    reference = {
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]
    }  # fmt: skip
    owned = {"metadata": {"name": "owned", "ownerReferences": [reference]}}
    await client.ok("POST", CONFIGMAPS, owned)
    await client.ok("DELETE", CONFIGMAPS + "/owner", {"propagationPolicy": policy})
    assert (await client.call("GET", CONFIGMAPS + "/owner"))[0] == 404
    assert ((await client.call("GET", CONFIGMAPS + "/owned"))[0] == 200) == survives


async def test_a_namespace_takes_all_in_it_along_and_takes_nothing_new_while_it_ends(
    client: Client,
) -> None:
    client.api.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}})
    path = "/api/v1/namespaces/n/configmaps"
    await client.ok("POST", path, config_map("plain"))
    await client.ok("POST", path, {"metadata": {"name": "held", "finalizers": ["x/y"]}})
    await client.ok("DELETE", "/api/v1/namespaces/n")
    assert (await client.call("GET", path + "/plain"))[0] == 404
    assert (await client.call("POST", path, config_map("late")))[0] == 403
    patch = {"metadata": {"finalizers": None}}
    await client.ok("PATCH", path + "/held", patch, kind="application/merge-patch+json")
    assert (await client.call("GET", "/api/v1/namespaces/n"))[0] == 404


DEFINITION: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "mills.x.dev"},
    "spec": {
        "group": "x.dev",
        "scope": "Namespaced",
        "names": {"plural": "mills", "kind": "Mill"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.wheels",
                        "statusReplicasPath": ".status.wheels",
                    },
                },
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["wheels"],
                                "properties": {
                                    "wheels": {
                                        "type": "integer",
                                        "minimum": 1,
                                        "x-kubernetes-validations": [
                                            {"rule": "self >= oldSelf", "message": "never fewer"}
                                        ],
                                    },
                                    "stone": {"type": "string", "default": "basalt"},
                                },
                            },
                            "status": {
                                "type": "object",
                                "properties": {"wheels": {"type": "integer"}},
                            },
                        },
                    }
                },
            }
        ],
    },
}
MILLS = "/apis/x.dev/v1/namespaces/default/mills"


async def test_a_definition_serves_its_resource_with_its_schema(client: Client) -> None:
    assert (await client.call("GET", MILLS))[0] == 404
    client.api.make(DEFINITION)
    mill = {"metadata": {"name": "m"}, "spec": {"wheels": 2, "typo": 1}, "status": {"wheels": 9}}
    made = await client.ok("POST", MILLS, mill)
    assert made["spec"] == {"wheels": 2, "stone": "basalt"}
    assert "status" not in made
    status, answer = await client.call(
        "POST", MILLS, {"metadata": {"name": "bad"}, "spec": {"wheels": "two"}}
    )
    assert (status, answer["details"]["causes"][0]["field"]) == (422, "spec.wheels")
    status, answer = await client.call("PUT", MILLS + "/m", {**made, "spec": {"wheels": 1}})
    assert status == 422
    assert "never fewer" in answer["message"]


async def test_status_and_scale_are_doors_of_their_own(client: Client) -> None:
    client.api.make(DEFINITION)
    made = await client.ok("POST", MILLS, {"metadata": {"name": "m"}, "spec": {"wheels": 2}})
    both = {**made, "spec": {"wheels": 7}, "status": {"wheels": 2}}
    after = await client.ok("PUT", MILLS + "/m/status", both)
    assert (after["spec"]["wheels"], after["status"]["wheels"]) == (2, 2)
    assert after["metadata"]["generation"] == 1
    scale = await client.ok("GET", MILLS + "/m/scale")
    scale["spec"]["replicas"] = 4
    await client.ok("PUT", MILLS + "/m/scale", scale)
    grown = await client.ok("GET", MILLS + "/m")
    assert (grown["spec"]["wheels"], grown["metadata"]["generation"]) == (4, 2)
    assert grown["status"] == {"wheels": 2}


async def test_server_side_apply_creates_and_takes_back_what_is_no_longer_applied(
    client: Client,
) -> None:
    kind = "application/apply-patch+yaml"
    path = CONFIGMAPS + "/a?fieldManager=me"
    base = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    await client.ok("PATCH", path, {**base, "data": {"x": "1", "y": "2"}}, kind=kind)
    patch = {"data": {"z": "theirs"}}
    await client.ok("PATCH", CONFIGMAPS + "/a", patch, kind="application/merge-patch+json")
    after = await client.ok("PATCH", path, {**base, "data": {"x": "3"}}, kind=kind)
    assert after["data"] == {"x": "3", "z": "theirs"}


async def test_a_lease_needs_a_revision_to_be_replaced(client: Client) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    await client.ok("POST", path, {"metadata": {"name": "a"}, "spec": {}})
    assert (await client.call("PUT", path + "/a", {"metadata": {"name": "a"}}))[0] == 422


async def test_a_config_map_is_at_most_one_mebibyte(client: Client) -> None:
    assert (await client.call("POST", CONFIGMAPS, config_map("a", k="x" * (1 << 20))))[0] == 201
    assert (await client.call("POST", CONFIGMAPS, config_map("b", k="x" * (1 << 20) + "y")))[
        0
    ] == 422


async def test_rights_come_from_roles_and_bindings(client: Client) -> None:
    client.api.enforce_rbac = True
    group = "rbac.authorization.k8s.io"
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create"]}
    client.api.make({
        "apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": "r"}, "rules": [rule]
    })  # fmt: skip
    client.api.make({
        "apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": {"name": "r"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "broker"}],
    })  # fmt: skip
    headers = {"Authorization": "Bearer sa:default:broker"}
    await client.ok("POST", CONFIGMAPS, config_map("a"), headers=headers)
    for method, path in (("GET", CONFIGMAPS), ("DELETE", CONFIGMAPS + "/a")):
        status, answer = await client.call(method, path, headers=headers)
        assert (status, answer["reason"]) == (403, "Forbidden")
    other = {"Authorization": "Bearer sa:kube-system:broker"}
    assert (await client.call("GET", CONFIGMAPS + "/a", headers=other))[0] == 403


async def test_a_fault_may_answer_an_error_for_a_write_that_was_done(client: Client) -> None:
    fault = client.api.faults.add(Fault(verb="create", code=500, applied=True))
    assert (await client.call("POST", CONFIGMAPS, config_map("a")))[0] == 500
    assert (await client.call("POST", CONFIGMAPS, config_map("a")))[0] == 409
    assert fault.met == 2
    client.api.faults.add(Fault(verb="get", code=429, retry_after_s=2))
    async with client.session.get(client.api.url + CONFIGMAPS + "/a") as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "2")


async def test_a_restore_goes_back_and_gives_revisions_out_again(client: Client) -> None:
    first = await client.ok("POST", CONFIGMAPS, config_map("a", k="1"))
    saved = client.api.save()
    second = await client.ok("PUT", CONFIGMAPS + "/a", {**first, "data": {"k": "2"}})
    client.api.restore(saved)
    assert await client.ok("GET", CONFIGMAPS + "/a") == first
    other = await client.ok("PUT", CONFIGMAPS + "/a", {**first, "data": {"k": "3"}})
    assert other["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


async def test_a_json_patch_whose_test_fails_is_refused_whole(client: Client) -> None:
    await client.ok("POST", CONFIGMAPS, config_map("a", k="1"))
    kind = "application/json-patch+json"
    change = {"op": "replace", "path": "/data/k", "value": "2"}
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": "0"}
    status, _ = await client.call("PATCH", CONFIGMAPS + "/a", [change, test], kind=kind)
    assert status == 422
    assert (await client.ok("GET", CONFIGMAPS + "/a"))["data"] == {"k": "1"}
    await client.ok("PATCH", CONFIGMAPS + "/a", [change], kind=kind)
    assert (await client.ok("GET", CONFIGMAPS + "/a"))["data"] == {"k": "2"}


OPERATOR = """
import kopf

@kopf.on.create("x.dev", "v1", "mills")
@kopf.on.update("x.dev", "v1", "mills")
def turn(spec, patch, **_):
    patch.status["wheels"] = spec["wheels"]

@kopf.on.delete("x.dev", "v1", "mills")
def stop(**_):
    pass
"""


async def test_a_kopf_operator_handles_creation_update_and_deletion(
    client: Client, tmp_path: Path
) -> None:
    client.api.make(DEFINITION)
    (tmp_path / "mills.py").write_text(OPERATOR)
    kubeconfig = client.api.write_kubeconfig(tmp_path / "kubeconfig")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kopf", "run", "--standalone", "-n", "default", "mills.py",
        cwd=tmp_path, env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip

    async def until_status(wheels: int) -> Json:
        while True:
            found: Json = await client.ok("GET", MILLS + "/m")
            if (found.get("status") or {}).get("wheels") == wheels:
                return found
            await asyncio.sleep(0.05)

    try:
        async with asyncio.timeout(30):
            await client.ok("POST", MILLS, {"metadata": {"name": "m"}, "spec": {"wheels": 2}})
            assert "finalizers" in (await until_status(2))["metadata"]
            patch = {"spec": {"wheels": 3}}
            await client.ok("PATCH", MILLS + "/m", patch, kind="application/merge-patch+json")
            await until_status(3)
            await client.ok("DELETE", MILLS + "/m")
            while (await client.call("GET", MILLS + "/m"))[0] != 404:
                await asyncio.sleep(0.05)
    finally:
        process.terminate()
        await process.wait()

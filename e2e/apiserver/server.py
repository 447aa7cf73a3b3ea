"""The API over HTTP: finds the resource, asks for the right, meets the faults, does, answers.

    request → who (token) → what (`paths`) → may he (`rbac`) → fault? → `lifecycle` / `lists`
            → fault? → answer

`ApiServer` runs inside a test (`async with ApiServer() as api`) or as a process (`__main__`).
"""

from __future__ import annotations

import asyncio
import datetime
import json
import random
import ssl
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml
from aiohttp import web

from apiserver import answers, discovery, forwarding, paths, rbac, tables
from apiserver.answers import ApiError, Json
from apiserver.faults import Fault, Faults
from apiserver.lifecycle import DeleteOptions, Lifecycle
from apiserver.lists import Lists
from apiserver.paths import Target
from apiserver.registry import Registry
from apiserver.resources import Resource
from apiserver.state import Ref, Saved, State
from apiserver.subresources import evict, patched, read_scale, write_scale
from apiserver.watches import Stream, Watches

WATCH_TIMEOUT_S = 1_800.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as the server saw it, for tests that count."""

    user: str
    verb: str
    resource: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """A request on its way through the server."""

    request: web.Request
    target: Target
    resource: Resource
    user: str
    verb: str
    query: dict[str, str]

    @property
    def ref(self) -> Ref:
        """The object it names."""
        target = self.target
        return Ref(target.group, target.plural, target.namespace, target.name)

    @property
    def dry_run(self) -> bool:
        """Whether nothing may be kept."""
        return bool(self.query.get("dryRun"))

    async def body(self) -> Json:
        """The body as an object.

        Raises:
            ApiError: 400, 415.
        """
        found = await read_body(self.request)
        if not isinstance(found, dict):
            raise answers.bad_request("the body isn't an object")
        return found


async def read_body(request: web.Request) -> Any:
    """The body of a request: JSON, or YAML where its type says so.

    Raises:
        ApiError: 400, 415 (protobuf).
    """
    if "protobuf" in request.content_type:
        raise answers.unsupported_media_type(request.content_type)
    data = await request.read()
    try:
        return (
            (yaml.safe_load(data) if "yaml" in request.content_type else json.loads(data))
            if data
            else {}
        )
    except (ValueError, yaml.YAMLError) as error:
        raise answers.bad_request(f"the body can't be read: {error}") from error


class ApiServer:
    """The server and all that tests may look at or break: `state`, `faults`, `watches`, `seen`."""

    def __init__(
        self,
        *,
        enforce_rbac: bool = False,
        bookmark_interval_s: float = 60.0,
        seed: int | None = None,
        namespaces: tuple[str, ...] = ("default", "kube-system"),
    ) -> None:
        self.state = State()
        self.registry = Registry()
        self.lifecycle = Lifecycle(self.state, self.registry, random.Random(seed))
        self.lists = Lists(self.state)
        self.faults = Faults()
        self.watches = Watches(self.state, bookmark_interval_s)
        self.seen: deque[Seen] = deque(maxlen=100_000)
        self.enforce_rbac = enforce_rbac
        self._runner: web.AppRunner | None = None
        self._url = ""
        for name in namespaces:
            self.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    # --- for tests ---

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._url

    async def start(
        self, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        """Listens; port 0: one that is free. `tls`: over HTTPS."""
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=tls)
        await site.start()
        bound = self._runner.addresses[0]
        self._url = f"{'https' if tls else 'http'}://{host}:{bound[1]}"

    async def stop(self) -> None:
        """Ends all connections; the state stays, so `start` may follow."""
        self.watches.drop()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> ApiServer:
        await self.start()
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def make(self, value: Json) -> Json:
        """Creates an object as the admin, without HTTP."""
        resource = self.registry.by_kind(value["apiVersion"], value["kind"])
        assert resource is not None, f"no resource {value['apiVersion']} {value['kind']}"
        namespace = value["metadata"].get("namespace", "default") if resource.namespaced else ""
        return self.lifecycle.create(resource, namespace, value)

    def save(self) -> Saved:
        """A backup of etcd."""
        return self.state.save()

    def restore(self, saved: Saved) -> None:
        """An etcd restore: everything goes back, the revision counter too, all watches break."""
        self.state.restore(saved)
        self.watches.drop()

    def write_kubeconfig(
        self,
        path: Path,
        *,
        token: str = "admin",
        namespace: str = "",
        authority: Path | None = None,
    ) -> Path:
        """A kubeconfig for this server, and its path. `authority`: file with its certificate."""
        cluster = {"server": self.url}
        if authority is not None:
            cluster["certificate-authority"] = str(authority)
        context = {"cluster": "emulator", "user": "user", "namespace": namespace or "default"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "emulator",
            "clusters": [{"name": "emulator", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "emulator", "context": context}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    # --- a request's way ---

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._serve(request)
        except ApiError as error:
            return web.json_response(error.status, status=error.code, headers=error.headers)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if aim := forwarding.proxied(request.path):
            return await self._proxy(request, aim)
        target = paths.parse(request.path)
        if target is None:
            if request.path in ("/healthz", "/livez", "/readyz"):
                return web.Response(text="ok")
            parts = [part for part in request.path.split("/") if part]
            return web.json_response(discovery.answer(self.registry, parts))
        user = rbac.user_of(request.headers.get("Authorization", "").partition(" ")[2].strip())
        query = dict(request.query)
        verb = paths.verb_of(request.method, target, query)
        self.seen.append(Seen(user, verb, target.resource, target.namespace, target.name))
        fault = self.faults.meet(verb, target.resource, target.name, user)
        if fault is not None:
            await asyncio.sleep(fault.delay_s)
            if fault.action != "pass" and not fault.applied:
                return await self._fail(request, fault)
        if target.plural == "selfsubjectaccessreviews":
            answer = rbac.access_review(self.state, user, await read_body(request))
            return web.json_response(answer, status=201)
        if target.plural == "tokenreviews":
            return web.json_response(rbac.token_review(await read_body(request)), status=201)
        self._authorise(user, verb, target)
        resource = self.registry.find(target.group, target.version, target.plural)
        call = Call(request, target, resource, user, verb, query)
        response = await self._do(call)
        if fault is not None:
            await asyncio.sleep(fault.delay_answer_s)
            if fault.action != "pass":
                return await self._fail(request, fault)
        return response

    async def _proxy(self, request: web.Request, aim: forwarding.Proxied) -> web.StreamResponse:
        user = rbac.user_of(request.headers.get("Authorization", "").partition(" ")[2].strip())
        target = Target("", "v1", aim.plural, aim.namespace, aim.name, "proxy")
        self._authorise(user, paths.verb_of(request.method, target, {}), target)
        host, port = forwarding.address_of(self.state, aim)
        query = f"?{request.query_string}" if request.query_string else ""
        return await forwarding.forward(request, f"http://{host}:{port}{aim.rest}{query}")

    async def _fail(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.action == "answer":
            raise fault.error
        if fault.action == "hang":
            await asyncio.Event().wait()
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)

    def _authorise(self, user: str, verb: str, target: Target) -> None:
        action = rbac.Action(
            user, verb, target.group, target.resource, target.namespace, target.name
        )
        if self.enforce_rbac and not rbac.is_allowed(self.state, action):
            raise answers.forbidden(target.resource, target.name, action.refusal)

    async def _do(self, call: Call) -> web.StreamResponse:
        target = call.target
        if special := await self._special(call):
            return special
        match call.verb:
            case "watch":
                return await self._watch(call)
            case "list":
                return self._list(call)
            case "get":
                return self._answer(call, self._found(call))
            case "create":
                created = self.lifecycle.create(
                    call.resource, target.namespace, await call.body(), dry_run=call.dry_run
                )
                return self._answer(call, created, status=201)
            case "update":
                return await self._update(call)
            case "patch":
                return await self._patch(call)
            case "delete":
                options = DeleteOptions.of(await call.body(), call.query)
                return web.json_response(self.lifecycle.delete(call.resource, call.ref, options))
            case "deletecollection":
                return await self._delete_all(call)
        raise ApiError(405, "MethodNotAllowed", f"the server does not allow {call.verb}")

    # --- verbs ---

    def _found(self, call: Call) -> Json:
        found = self.state.get(call.ref)
        if found is None:
            raise answers.not_found(call.target.plural, call.target.name)
        return found

    async def _update(self, call: Call) -> web.StreamResponse:
        existed = self.state.get(call.ref) is not None
        stored = self.lifecycle.update(
            call.resource,
            call.ref,
            await call.body(),
            subresource=call.target.subresource,
            dry_run=call.dry_run,
        )
        return self._answer(call, stored, status=200 if existed else 201)

    async def _patch(self, call: Call) -> web.StreamResponse:
        kind = call.request.content_type
        patch = await read_body(call.request)
        present = self.state.get(call.ref)
        if present is None and kind == "application/apply-patch+yaml":
            created = self.lifecycle.create(
                call.resource,
                call.target.namespace,
                patched(call.resource, {}, patch, kind, call.query.get("fieldManager", "")),
                dry_run=call.dry_run,
            )
            return self._answer(call, created, status=201)
        present = self._found(call)
        value = patched(call.resource, present, patch, kind, call.query.get("fieldManager", ""))
        stored = self.lifecycle.update(
            call.resource,
            call.ref,
            value,
            subresource=call.target.subresource,
            dry_run=call.dry_run,
        )
        return self._answer(call, stored)

    async def _delete_all(self, call: Call) -> web.StreamResponse:
        options = DeleteOptions.of(await call.body(), call.query)
        found = self.lists.page(call.resource, call.target.namespace, call.query)
        for item in found["items"]:
            meta = item["metadata"]
            ref = Ref(*call.resource.collection, meta.get("namespace", ""), meta["name"])
            self.lifecycle.delete(call.resource, ref, options)
        return web.json_response(answers.success({"kind": call.resource.plural}))

    def _list(self, call: Call) -> web.StreamResponse:
        page = self.lists.page(call.resource, call.target.namespace, call.query)
        if "as=Table" in call.request.headers.get("Accept", ""):
            rows = self._table(call, page["items"], page["metadata"]["resourceVersion"])
            rows["metadata"] = page["metadata"]
            return web.json_response(rows)
        return web.json_response(page)

    def _answer(self, call: Call, value: Json, *, status: int = 200) -> web.StreamResponse:
        if call.verb == "get" and "as=Table" in call.request.headers.get("Accept", ""):
            value = self._table(call, [value], value["metadata"]["resourceVersion"])
        elif value.get("apiVersion") != call.resource.api_version:
            value = {**value, "apiVersion": call.resource.api_version}
        return web.json_response(value, status=status)

    def _table(self, call: Call, items: list[Json], revision: str) -> Json:
        return tables.table(call.resource, items, revision, datetime.datetime.now(datetime.UTC))

    async def _watch(self, call: Call) -> web.StreamResponse:
        namespace, query = call.target.namespace, dict(call.query)
        if call.target.name:
            query["fieldSelector"] = f"metadata.name={call.target.name}"
        matches = self.lists.matcher(query)
        initial, position = self.lists.start_of_watch(call.resource, namespace, query, matches)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        stream = Stream(
            collection=call.resource.collection,
            namespace=namespace,
            matches=matches,
            shape=self._shape(call),
            position=position,
            bookmarks=query.get("allowWatchBookmarks") in ("true", "1"),
            timeout_s=_whole(query.get("timeoutSeconds")) or WATCH_TIMEOUT_S,
            response=response,
            user=call.user,
        )
        await response.prepare(call.request)
        mark_end = query.get("sendInitialEvents") == "true"
        await self.watches.serve(stream, initial, mark_end=mark_end)
        return response

    def _shape(self, call: Call) -> Any:
        if "as=Table" in call.request.headers.get("Accept", ""):
            return lambda items: self._table(call, items, "")
        return lambda items: items[0]

    # --- subresources and reviews ---

    async def _special(self, call: Call) -> web.StreamResponse | None:
        target = call.target
        match target.subresource:
            case "" | "status":
                if target.subresource and not call.resource.has_status:
                    raise answers.no_such_path()
                return None
            case "scale" if call.resource.scale:
                return await self._scale(call)
            case "log" if call.resource.kind == "Pod":
                url = forwarding.log_url(self.state, target.namespace, target.name, call.query)
                return await forwarding.forward(call.request, url)
            case "eviction" if call.verb == "create":
                evict(self.lifecycle, call.resource, call.ref)
                return web.json_response(answers.success({}), status=201)
            case "token" if call.resource.kind == "ServiceAccount":
                token = rbac.token_of(target.namespace, target.name)
                return web.json_response({"status": {"token": token}}, status=201)
            case "finalize":
                return await self._update(call)
        raise answers.no_such_path()

    async def _scale(self, call: Call) -> web.StreamResponse:
        present = self._found(call)
        if call.verb == "get":
            return web.json_response(read_scale(call.resource, present))
        body = await read_body(call.request)
        kind = call.request.content_type
        if call.verb == "patch":
            body = patched(call.resource, read_scale(call.resource, present), body, kind, "")
        changed = write_scale(call.resource, present, body)
        stored = self.lifecycle.update(call.resource, call.ref, changed, dry_run=call.dry_run)
        return web.json_response(read_scale(call.resource, stored))


def _whole(text: str | None) -> int:
    """A number in the query; the real server takes no 240.0."""
    if text and not text.isdecimal():
        raise answers.bad_request(f"{text!r} is not an integer")
    return int(text or 0)

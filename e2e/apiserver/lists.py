"""Lists: selectors, consistency by revision, and pages. Pure, but for the pages it remembers."""

from __future__ import annotations

from apiserver import answers
from apiserver.answers import Json
from apiserver.resources import Resource
from apiserver.selectors import Test, fields_test, labels_test
from apiserver.state import State

PAGES_MAX = 200
"""Continue tokens that work; older ones have expired."""


class Lists:
    """Reads of whole collections."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._rest: dict[str, tuple[int, list[Json]]] = {}
        self._tokens = 0

    def matcher(self, query: dict[str, str]) -> Test:
        """The test that a query's selectors make."""
        by_label = labels_test(query.get("labelSelector", ""))
        by_field = fields_test(query.get("fieldSelector", ""))
        return lambda value: by_label(value) and by_field(value)

    def page(self, resource: Resource, namespace: str, query: dict[str, str]) -> Json:
        """One page of a list.

        Raises:
            ApiError: 400, 410 (the page or the revision is too old), 504 (from the future).
        """
        if token := query.get("continue"):
            revision, items = self._continued(token)
        else:
            revision, items = self._whole(resource, namespace, query)
        limit = int(query.get("limit") or 0)
        meta: Json = {"resourceVersion": str(revision)}
        if limit and len(items) > limit:
            meta["continue"] = self._remember(revision, items[limit:])
            meta["remainingItemCount"] = len(items) - limit
            items = items[:limit]
        return {
            "kind": resource.kind + "List",
            "apiVersion": resource.api_version,
            "metadata": meta,
            "items": items,
        }

    def start_of_watch(
        self, resource: Resource, namespace: str, query: dict[str, str], matches: Test
    ) -> tuple[list[Json], int]:
        """What a watch sends first, and the revision from which it goes on.

        Raises:
            ApiError: 410.
        """
        wanted = query.get("resourceVersion", "")
        if wanted in ("", "0") or query.get("sendInitialEvents") == "true":
            found = self._state.listed(resource.collection, namespace)
            return [value for _, value in found if matches(value)], self._state.revision
        revision = _number(wanted)
        self._check_not_future(revision)
        self._state.since(revision)
        return [], revision

    def _whole(
        self, resource: Resource, namespace: str, query: dict[str, str]
    ) -> tuple[int, list[Json]]:
        matches = self.matcher(query)
        wanted, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
        if match and not wanted:
            raise answers.bad_request("resourceVersionMatch is forbidden unless resourceVersion is")
        if wanted in ("", "0") or match != "Exact":
            if wanted not in ("", "0"):
                self._check_not_future(_number(wanted))
            revision = self._state.revision
            found = self._state.listed(resource.collection, namespace)
        else:
            revision = _number(wanted)
            self._check_not_future(revision)
            found = self._state.at(resource.collection, namespace, revision)
        return revision, [value for _, value in found if matches(value)]

    def _check_not_future(self, revision: int) -> None:
        if revision > self._state.revision:
            raise answers.too_large_revision(revision, self._state.revision)

    def _continued(self, token: str) -> tuple[int, list[Json]]:
        found = self._rest.pop(token, None)
        if found is None or found[0] < self._state.compacted:
            raise answers.expired(
                "The provided continue parameter is too old to display a consistent list result."
            )
        return found

    def _remember(self, revision: int, items: list[Json]) -> str:
        self._tokens += 1
        token = f"page-{self._tokens}"
        self._rest[token] = (revision, items)
        while len(self._rest) > PAGES_MAX:
            self._rest.pop(next(iter(self._rest)))
        return token


def _number(revision: str) -> int:
    if not revision.isascii() or not revision.isdecimal():
        raise answers.bad_request(f'Invalid value: "{revision}": invalid resource version')
    return int(revision)

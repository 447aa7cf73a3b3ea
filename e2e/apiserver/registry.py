"""Which resources are served now: the built-in ones and those of the definitions in the state."""

from __future__ import annotations

from apiserver.answers import Json, no_such_path
from apiserver.resources import BUILT_IN, Resource, of_definition
from apiserver.state import Ref


class Registry:
    """Resources by group, version and plural."""

    def __init__(self) -> None:
        self._served: dict[tuple[str, str, str], Resource] = {
            (each.group, each.version, each.plural): each for each in BUILT_IN
        }

    def all(self) -> list[Resource]:
        """Everything that is served."""
        return list(self._served.values())

    def find(self, group: str, version: str, plural: str) -> Resource:
        """The resource of a path.

        Raises:
            ApiError: 404, nobody serves it.
        """
        found = self._served.get((group, version, plural))
        if found is None:
            raise no_such_path()
        return found

    def of(self, ref: Ref) -> Resource | None:
        """The resource of a stored object, in any version."""
        return next((r for r in self._served.values() if r.collection == ref.collection), None)

    def by_kind(self, api_version: str, kind: str) -> Resource | None:
        """The resource of an object."""
        return next(
            (r for r in self._served.values() if (r.api_version, r.kind) == (api_version, kind)),
            None,
        )

    def changed(self, resource: Resource, value: Json) -> None:
        """Serves what a stored definition defines."""
        if resource.kind == "CustomResourceDefinition":
            self.removed(resource, value)
            for each in of_definition(value):
                self._served[each.group, each.version, each.plural] = each

    def removed(self, resource: Resource, value: Json) -> None:
        """Stops serving what a removed definition defined."""
        if resource.kind == "CustomResourceDefinition":
            place = value["spec"]["group"], value["spec"]["names"]["plural"]
            gone = [key for key, each in self._served.items() if each.collection == place]
            for key in gone:
                del self._served[key]

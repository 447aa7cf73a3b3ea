"""Which resources are served and what is special about each. Pure.

Built-in ones are in a table; a CustomResourceDefinition adds its own (`of_definition`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from apiserver.answers import Json


@dataclass(frozen=True, slots=True)
class Scale:
    """Paths of the scale subresource."""

    spec: str = "spec.replicas"
    status: str = "status.replicas"
    selector: str = "status.selector"


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource in one version."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    has_status: bool = False
    scale: Scale | None = None
    custom: bool = False
    schema: Json | None = field(default=None, compare=False)
    columns: tuple[Json, ...] = field(default=(), compare=False)
    unconditional_update: bool = True
    create_on_update: bool = False

    @property
    def api_version(self) -> str:
        """`v1` or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def collection(self) -> tuple[str, str]:
        """Where the state keeps its objects."""
        return self.group, self.plural


_CORE = ""
_APPS = "apps"
_RBAC = "rbac.authorization.k8s.io"
_REPLICAS = Scale(selector="")

BUILT_IN: tuple[Resource, ...] = (
    Resource(_CORE, "v1", "namespaces", "Namespace", False, ("ns",), has_status=True),
    Resource(_CORE, "v1", "nodes", "Node", False, ("no",), has_status=True),
    Resource(_CORE, "v1", "configmaps", "ConfigMap", True, ("cm",)),
    Resource(_CORE, "v1", "secrets", "Secret"),
    Resource(_CORE, "v1", "services", "Service", True, ("svc",), ("all",), has_status=True),
    Resource(_CORE, "v1", "endpoints", "Endpoints", True, ("ep",)),
    Resource(_CORE, "v1", "pods", "Pod", True, ("po",), ("all",), has_status=True),
    Resource(
        _CORE, "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, ("pvc",),
        has_status=True,
    ),
    Resource(
        _CORE, "v1", "persistentvolumes", "PersistentVolume", False, ("pv",), has_status=True
    ),
    Resource(_CORE, "v1", "serviceaccounts", "ServiceAccount", True, ("sa",)),
    Resource(_CORE, "v1", "events", "Event", True, ("ev",)),
    Resource("events.k8s.io", "v1", "events", "Event", True, ("ev",)),
    Resource(
        _APPS, "v1", "statefulsets", "StatefulSet", True, ("sts",), ("all",),
        has_status=True, scale=_REPLICAS,
    ),
    Resource(
        _APPS, "v1", "deployments", "Deployment", True, ("deploy",), ("all",),
        has_status=True, scale=_REPLICAS,
    ),
    Resource(
        _APPS, "v1", "replicasets", "ReplicaSet", True, ("rs",), ("all",),
        has_status=True, scale=_REPLICAS,
    ),
    Resource(_APPS, "v1", "controllerrevisions", "ControllerRevision"),
    Resource("batch", "v1", "jobs", "Job", True, (), ("all",), has_status=True),
    Resource(
        "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, ("pdb",),
        has_status=True,
    ),
    Resource(_RBAC, "v1", "roles", "Role"),
    Resource(_RBAC, "v1", "rolebindings", "RoleBinding"),
    Resource(_RBAC, "v1", "clusterroles", "ClusterRole", False),
    Resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    # A Lease's strategy: no update without a revision, and a PUT of an absent one creates it.
    Resource(
        "coordination.k8s.io", "v1", "leases", "Lease",
        unconditional_update=False, create_on_update=True,
    ),
    Resource(
        "networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, ("netpol",)
    ),
    Resource(
        "networking.k8s.io", "v1", "ingresses", "Ingress", True, ("ing",), has_status=True
    ),
    Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, ("sc",)),
    Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, ("pc",)),
    Resource(
        "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy", False, has_status=True,
    ),
    Resource(
        "admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding", False,
    ),
    Resource(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition",
        False, ("crd", "crds"), has_status=True,
    ),
)  # fmt: skip


def of_definition(definition: Json) -> list[Resource]:
    """The resources that a CustomResourceDefinition makes, one a served version."""
    spec = definition["spec"]
    names = spec["names"]
    return [
        Resource(
            spec["group"],
            version["name"],
            names["plural"],
            names["kind"],
            spec["scope"] == "Namespaced",
            tuple(names.get("shortNames", ())),
            tuple(names.get("categories", ())),
            has_status="status" in (version.get("subresources") or {}),
            scale=_scale(version),
            custom=True,
            schema=(version.get("schema") or {}).get("openAPIV3Schema"),
            columns=tuple(version.get("additionalPrinterColumns", ())),
            unconditional_update=False,
        )
        for version in spec["versions"]
        if version.get("served", True)
    ]


def _scale(version: Json) -> Scale | None:
    found = (version.get("subresources") or {}).get("scale")
    if found is None:
        return None
    return Scale(
        found["specReplicasPath"].lstrip("."),
        found["statusReplicasPath"].lstrip("."),
        found.get("labelSelectorPath", "").lstrip("."),
    )

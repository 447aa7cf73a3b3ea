"""Volume claims: bound to a volume of their class, protected while used, grown where that is
allowed. A volume is a folder; nothing bounds what is written to it."""

from __future__ import annotations

import shutil
from pathlib import Path

from apiserver.validation import quantity
from kubelet.caches import Caches
from kubelet.client import Json, Refused
from kubelet.statefulsets import is_ending

PROTECTION = "kubernetes.io/pvc-protection"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def volume_folder(base: Path, claim: Json) -> Path:
    """Where a claim's bytes are. Another claim of the same name has another folder."""
    return base / "volumes" / str(claim["metadata"]["uid"])


def class_of(claim: Json, classes: list[Json]) -> Json | None:
    """The claim's storage class: the one it names, else the default."""
    wanted = claim["spec"].get("storageClassName")
    for each in classes:
        annotations = each["metadata"].get("annotations") or {}
        is_default = annotations.get(DEFAULT_CLASS) == "true"
        if wanted == each["metadata"]["name"] or (wanted is None and is_default):
            return each
    return None


def uses(pod: Json, claim_name: str) -> bool:
    """Whether a pod on a node mounts the claim."""
    return bool(pod["spec"].get("nodeName")) and any(
        (volume.get("persistentVolumeClaim") or {}).get("claimName") == claim_name
        for volume in pod["spec"].get("volumes") or ()
    )


async def reconcile(caches: Caches, base: Path) -> None:
    """One look at every claim and volume."""
    for claim in caches.all("PersistentVolumeClaim"):
        try:
            await _reconcile(caches, claim, base)
        except Refused as error:
            if error.code not in (404, 409):
                raise
    claims = {each["metadata"]["uid"] for each in caches.all("PersistentVolumeClaim")}
    for volume in caches.all("PersistentVolume"):
        uid = volume["spec"]["claimRef"]["uid"]
        if uid not in claims and volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete":
            await caches.delete(volume)
            shutil.rmtree(base / "volumes" / uid, ignore_errors=True)


async def _reconcile(caches: Caches, claim: Json, base: Path) -> None:
    meta = claim["metadata"]
    if is_ending(claim):
        pods = caches.all("Pod", meta["namespace"])
        if not any(uses(pod, meta["name"]) for pod in pods):
            left = [each for each in meta.get("finalizers") or () if each != PROTECTION]
            await caches.patch(claim, {"metadata": {"finalizers": left}})
        return
    if PROTECTION not in (meta.get("finalizers") or ()):
        names = [*(meta.get("finalizers") or ()), PROTECTION]
        claim = await caches.patch(claim, {"metadata": {"finalizers": names}})
    storage_class = class_of(claim, caches.all("StorageClass"))
    wanted = claim["spec"]["resources"]["requests"]["storage"]
    if claim.get("status", {}).get("phase") != "Bound":
        if storage_class is None:
            await caches.set_status(claim, {"phase": "Pending"})
            return
        await _bind(caches, claim, storage_class, base)
    elif (
        storage_class is not None
        and storage_class.get("allowVolumeExpansion")
        and quantity(wanted) > quantity(claim["status"]["capacity"]["storage"])
    ):
        await caches.set_status(claim, {"capacity": {"storage": wanted}})


async def _bind(caches: Caches, claim: Json, storage_class: Json, base: Path) -> None:
    meta, wanted = claim["metadata"], claim["spec"]["resources"]["requests"]["storage"]
    volume_folder(base, claim).mkdir(parents=True, exist_ok=True)
    name = f"pvc-{meta['uid']}"
    reference = {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}
    if caches.get("PersistentVolume", "", name) is None:
        await caches.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": {
                    "capacity": {"storage": wanted},
                    "accessModes": claim["spec"].get("accessModes", ["ReadWriteOnce"]),
                    "claimRef": reference,
                    "storageClassName": storage_class["metadata"]["name"],
                    "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy", "Delete"),
                },
            }
        )
    spec = {"volumeName": name, "storageClassName": storage_class["metadata"]["name"]}
    claim = await caches.patch(claim, {"spec": spec})
    await caches.set_status(
        claim,
        {
            "phase": "Bound",
            "capacity": {"storage": wanted},
            "accessModes": claim["spec"].get("accessModes", ["ReadWriteOnce"]),
        },
    )

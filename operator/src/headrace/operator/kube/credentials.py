"""Where the API server is and who we are to it, found the way kopf does: `$KUBECONFIG`, the pod's
service account, the user's own kubeconfig. One finder for kopf's watches and for the requests."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path

import kopf

log = logging.getLogger("headrace.operator.kube")

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def find() -> kopf.ConnectionInfo:
    """The server and the credentials as they are now: a service account's token is rotated.

    Raises:
        kopf.LoginError: there are none that can be used.
    """
    settings = kopf.OperatorSettings()
    settings.networking.trust_env = True
    found = None
    if not os.environ.get("KUBECONFIG"):
        found = _by_address(kopf.login_with_service_account(settings=settings))
    found = found or _from_kubeconfig(settings)
    if found is None:
        raise kopf.LoginError(
            "no way to the Kubernetes API: run in a pod with a service account, or set KUBECONFIG"
        )
    return found


def _by_address(found: kopf.ConnectionInfo | None) -> kopf.ConnectionInfo | None:
    """The API server by the address that every pod is told, not by a name: DNS may be late."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if found is None or not host:
        return found
    return dataclasses.replace(
        found, server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    )


def _from_kubeconfig(settings: kopf.OperatorSettings) -> kopf.ConnectionInfo | None:
    try:
        found = kopf.login_with_kubeconfig(settings=settings)
    except (OSError, KeyError) as error:
        raise kopf.LoginError(f"the kubeconfig can't be used: {error}") from error
    if found is None or found.token or found.username or found.certificate_path:
        return found
    if found.certificate_data:
        return found
    # A kubeconfig with a plugin for credentials: the kubernetes package knows how to run it. It is
    # imported only then, since it takes 60 MB.
    return kopf.login_via_client(logger=log, settings=settings)


def own_namespace() -> str:
    """The namespace that this process runs in, or that the kubeconfig says."""
    named = os.environ.get("POD_NAMESPACE", "")
    if named:
        return named
    if NAMESPACE_FILE.exists():
        return NAMESPACE_FILE.read_text().strip()
    return find().default_namespace or "default"

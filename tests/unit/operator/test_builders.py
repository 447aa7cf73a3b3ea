"""The objects of a BrokerCluster: valid for Kubernetes, restricted, and stable."""

from __future__ import annotations

import tomllib
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.operator import names, spec
from headrace.operator.builders import config
from headrace.operator.builders.brokers import stateful_set
from headrace.operator.builders.pods import pod_template
from headrace.operator.builders.whole import plain_objects
from headrace.operator.spec import BrokerClusterSpec, Owner
from headrace.protocol.errors import InvalidConfig

OWNER = Owner(namespace="queues", name="main", uid="u-1", generation=3)


def cluster(**changes: Any) -> BrokerClusterSpec:
    raw = {"replicas": 3, "image": "headrace:dev", "storage": {"size": "20Gi"}, **changes}
    return spec.read(BrokerClusterSpec, raw)


def everything(of: BrokerClusterSpec) -> list[dict[str, Any]]:
    secret = config.secret(OWNER, "hush")
    return [*plain_objects(OWNER, of), secret, stateful_set(OWNER, of, replicas=of.replicas)]


@pytest.mark.parametrize("version", ["1.28", "1.33"])
def test_every_object_is_valid_for_kubernetes(version: str) -> None:
    full = cluster(
        rack={"topologyKey": "topology.kubernetes.io/zone"},
        resources={"requests": {"cpu": "500m", "memory": "512Mi"}},
        config={"min.insync.replicas": 2, "io.threads": 8},
        imagePullSecrets=[{"name": "pull"}],
        template={
            "pod": {
                "tolerations": [{"key": "queue", "operator": "Exists"}],
                "nodeSelector": {"disk": "fast"},
                "priorityClassName": "high",
            },
            "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        },
    )
    for made in [*everything(cluster()), *everything(full)]:
        kubernetes_validate.validate(made, version, strict=True)


def test_names_are_distinct_for_each_kind() -> None:
    made = [(each["kind"], each["metadata"]["name"]) for each in everything(cluster())]
    assert len(set(made)) == len(made)


def test_no_object_looks_like_one_of_the_stores() -> None:
    for made in everything(cluster()):
        assert "headrace.dev/cluster" not in made["metadata"]["labels"]


def test_only_the_secret_outlives_the_cluster() -> None:
    ownerless = [e["kind"] for e in everything(cluster()) if "ownerReferences" not in e["metadata"]]
    assert ownerless == ["Secret"]


def test_pods_satisfy_the_restricted_profile() -> None:
    pod = pod_template(OWNER, cluster())["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}


def test_liveness_never_asks_for_more_than_the_process() -> None:
    [container] = pod_template(OWNER, cluster())["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def revision(of: BrokerClusterSpec) -> str:
    found: str = pod_template(OWNER, of)["metadata"]["annotations"][names.REVISION]
    return found


@pytest.mark.parametrize(
    "change",
    [
        {"image": "headrace:next"},
        {"config": {"io.threads": 8}},
        {"resources": {"limits": {"memory": "1Gi"}}},
        {"template": {"pod": {"annotations": {"a": "b"}}}},
    ],
)
def test_what_a_pod_reads_at_its_start_changes_the_revision(change: dict[str, Any]) -> None:
    assert revision(cluster(**change)) != revision(cluster())


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 5},
        {"config": {"min.insync.replicas": 2}},
        {"storage": {"size": "40Gi"}},
        {"rebalance": {"auto": False}},
        {"template": {"service": {"type": "NodePort"}}},
    ],
)
def test_what_needs_no_restart_leaves_the_revision(change: dict[str, Any]) -> None:
    assert revision(cluster(**change)) == revision(cluster())


def test_a_template_cannot_take_away_what_finds_the_pods() -> None:
    bad = {"pod": {"labels": {"app.kubernetes.io/instance": "another"}}}
    labels = pod_template(OWNER, cluster(template=bad))["metadata"]["labels"]
    assert names.selector("main").items() <= labels.items()


def test_a_template_cannot_change_where_the_state_is() -> None:
    bad = {"pod": {"env": [{"name": "HEADRACE_STORE", "value": "sqlite:/tmp/x"}]}}
    [container] = pod_template(OWNER, cluster(template=bad))["spec"]["containers"]
    last = {each["name"]: each.get("value") for each in container["env"]}
    assert last["HEADRACE_STORE"] == "kubernetes:queues/main"


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]+(\.[a-z]+){1,3}", fullmatch=True),
        st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(st.characters(codec="utf-8"))),
    )
)
def test_the_settings_file_reads_back_as_it_was_written(settings: dict[str, int | str]) -> None:
    assert tomllib.loads(config.toml(settings)) == settings


def test_live_and_static_settings_are_told_apart() -> None:
    found = cluster(config={"min.insync.replicas": 2, "io.threads": 8, "broker.id": 7})
    assert config.live_config(found) == {"min.insync.replicas": 2}
    assert config.static_config(found) == {"io.threads": 8}


def test_a_bad_spec_is_told_with_its_field() -> None:
    with pytest.raises(InvalidConfig, match=r"replicas"):
        cluster(replicas=0)

"""From a pod's description to a process: words, variables, files, names, verdicts."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from kubelet import endpoints, volumes
from kubelet.environment import Missing, Sources, data_of, expanded, variables_of, words_of
from kubelet.pod_status import ContainerState, phase, status
from kubelet.probes import Streak

Json = dict[str, Any]
POD: Json = {
    "metadata": {"name": "main-0", "namespace": "default", "annotations": {"x/rack": "north"}},
    "spec": {"nodeName": "a", "containers": [{"name": "broker"}]},
    "status": {"podIP": "127.1.2.3"},
}


def environment(*env: Json, **sources: Any) -> dict[str, str]:
    return variables_of({"env": list(env)}, POD, "127.1.2.3", Sources(**sources))


def test_variables_name_those_before_them() -> None:
    found = environment(
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "URL", "value": "http://$(POD).svc:$(PORT)"},
        {"name": "PORT", "value": "1"},
        {"name": "PRICE", "value": "$$(POD)"},
    )
    assert found["URL"] == "http://main-0.svc:$(PORT)"
    assert found["PRICE"] == "$(POD)"


def test_fields_of_the_pod_are_known() -> None:
    paths = ("spec.nodeName", "status.podIP", "metadata.annotations['x/rack']")
    refs = [{"name": p, "valueFrom": {"fieldRef": {"fieldPath": p}}} for p in paths]
    assert list(environment(*refs).values()) == ["a", "127.1.2.3", "north"]


def test_every_address_becomes_the_pods_own() -> None:
    assert environment({"name": "HOST", "value": "0.0.0.0"}) == {"HOST": "127.1.2.3"}
    assert words_of({"args": ["--listen=0.0.0.0:80"]}, {}, "127.1.2.3") == ["--listen=127.1.2.3:80"]


def test_a_key_that_is_missing_keeps_the_pod_waiting_unless_it_is_optional() -> None:
    reference = {"name": "settings", "key": "level"}
    with pytest.raises(Missing, match="settings"):
        environment({"name": "L", "valueFrom": {"configMapKeyRef": reference}})
    optional = {"configMapKeyRef": {**reference, "optional": True}}
    assert environment({"name": "L", "valueFrom": optional}, config_maps={"settings": {}}) == {}
    there = {"settings": {"level": b"INFO"}}
    found = environment(
        {"name": "L", "valueFrom": {"configMapKeyRef": reference}}, config_maps=there
    )
    assert found == {"L": "INFO"}


def test_unknown_references_stay_as_they_are() -> None:
    assert expanded("$(A) $(B) $ $$", {"A": "1"}) == "1 $(B) $ $"


def test_secrets_are_decoded() -> None:
    value = {"kind": "Secret", "data": {"key": base64.b64encode(b"\x00x").decode()}}
    assert data_of(value) == {"key": b"\x00x"}


def test_files_of_volumes_are_chosen_and_follow_their_object(tmp_path: Path) -> None:
    volume = {"configMap": {"name": "c", "items": [{"key": "a", "path": "sub/b"}]}}
    sources = Sources(config_maps={"c": {"a": b"1", "z": b"2"}})
    files = volumes.files_of(volume, POD, sources)
    assert files == {"sub/b": b"1"}
    with pytest.raises(Missing):
        volumes.files_of({"secret": {"secretName": "none"}}, POD, sources)
    rack = {"fieldPath": "metadata.annotations['x/rack']"}
    told = volumes.files_of(
        {"downwardAPI": {"items": [{"path": "rack", "fieldRef": rack}]}}, POD, sources
    )
    volumes.project(tmp_path / "v", {"rack": b"", "old": b""})
    volumes.project(tmp_path / "v", told or {})
    assert {path.name: path.read_text() for path in (tmp_path / "v").iterdir()} == {"rack": "north"}


def service(**spec: Any) -> Json:
    return {
        "metadata": {"name": "brokers", "namespace": "default", "uid": "s"},
        "spec": {"selector": {"app": "main"}, "ports": [{"port": 80}], **spec},
    }


def placed(name: str, address: str, *, ready: bool) -> Json:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": "main"}},
        "spec": {"hostname": name, "subdomain": "brokers"},
        "status": {
            "podIP": address,
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def test_names_lead_to_ready_pods_and_where_asked_to_all() -> None:
    pods = [placed("main-0", "127.0.0.5", ready=True), placed("main-1", "127.0.0.6", ready=False)]
    hidden = endpoints.hosts_text("default", [service(clusterIP="None")], pods)
    assert "127.0.0.5 main-0.brokers.default.svc" in hidden
    assert "127.0.0.6" not in hidden
    whole = service(clusterIP="None", publishNotReadyAddresses=True)
    assert "127.0.0.6 main-1.brokers.default.svc" in endpoints.hosts_text("default", [whole], pods)
    assert "brokers\n" not in endpoints.hosts_text("elsewhere", [whole], pods)


def test_a_slice_says_who_is_ready() -> None:
    pods = [placed("main-0", "127.0.0.5", ready=True), placed("main-1", "127.0.0.6", ready=False)]
    of = service()
    made = endpoints.slice_for(of, endpoints.endpoints_of(of, pods))
    assert [each["conditions"]["ready"] for each in made["endpoints"]] == [True, False]
    assert made["endpoints"][0]["hostname"] == "main-0"


def test_a_verdict_takes_several_answers_in_a_row() -> None:
    streak = Streak(failures_needed=2, successes_needed=1)
    answers = [False, True, False, False]
    assert [streak.verdict(ok) for ok in answers] == [None, True, None, False]


def test_a_pods_phase_follows_its_containers() -> None:
    one = ContainerState("broker", "image")
    assert phase([one]) == "Pending"
    one.state = {"running": {}}
    assert phase([one]) == "Running"
    one.state, one.restarts = {"waiting": {"reason": "CrashLoopBackOff"}}, 3
    assert phase([one]) == "Running"
    one.state = {"terminated": {"exitCode": 1}}
    assert phase([one]) == "Failed"


def test_a_condition_keeps_its_time_while_it_says_the_same() -> None:
    one = ContainerState("broker", "image", is_ready=True)
    first = status(POD, [one], address="127.0.0.5", host="127.0.0.1", now="monday")
    later = status(
        {**POD, "status": first}, [one], address="127.0.0.5", host="127.0.0.1", now="tuesday"
    )
    assert later == first
    one.is_ready = False
    changed = status({**POD, "status": first}, [one], address="x", host="y", now="tuesday")
    assert changed["conditions"][-1]["lastTransitionTime"] == "tuesday"

"""The Kubernetes files, field by field: core kinds and pod templates against the API's schema, the
operators' resources against the fields that these have."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples/spark/kubernetes"
POD = "pod"

# Field → type, out of what the operators' resources know; `pod` is a pod template.
KUBEFLOW: dict[str, Any] = {
    "type": ("Python", "Scala", "Java", "R"),
    "pythonVersion": ("2", "3"),
    "mode": ("cluster", "client"),
    "sparkVersion": str,
    "image": str,
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "mainApplicationFile": str,
    "arguments": [str],
    "sparkConf": {str: str},
    "restartPolicy": {
        "type": ("Never", "OnFailure", "Always"),
        "onFailureRetries": int,
        "onFailureRetryInterval": int,
        "onSubmissionFailureRetries": int,
        "onSubmissionFailureRetryInterval": int,
    },
    "driver": {"cores": int, "memory": str, "serviceAccount": str, "template": POD},
    "executor": {
        "cores": int,
        "instances": int,
        "memory": str,
        "serviceAccount": str,
        "template": POD,
    },
}
APACHE: dict[str, Any] = {
    "pyFiles": str,
    "driverArgs": [str],
    "runtimeVersions": {"sparkVersion": str, "scalaVersion": str, "jdkVersion": str},
    "sparkConf": {str: str},
    "applicationTolerations": {
        "resourceRetainPolicy": ("Always", "OnFailure", "Never"),
        "restartConfig": {
            "restartPolicy": ("Always", "Never", "OnFailure", "OnInfrastructureFailure"),
            "maxRestartAttempts": int,
            "restartBackoffMillis": int,
            "restartCounterResetMillis": int,
        },
    },
    "driverSpec": {"podTemplateSpec": POD},
    "executorSpec": {"podTemplateSpec": POD},
}
VERSION = kubernetes_validate.latest_version()


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def check_pod(template: dict[str, Any]) -> None:
    """A pod template as a pod; Spark puts the container's image in."""
    spec = dict(template["spec"])
    spec["containers"] = [{"image": "x", **each} for each in spec["containers"]]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": spec}
    kubernetes_validate.validate(pod, VERSION, strict=True)


def check(value: Any, known: Any, where: str) -> None:
    """Every field is known and of its type."""
    if known == POD:
        check_pod(value)
    elif isinstance(known, dict):
        assert isinstance(value, dict), where
        for name, inner in value.items():
            assert name in known or str in known, f"{where} has no field {name}"
            check(inner, known.get(name, known.get(str)), f"{where}.{name}")
    elif isinstance(known, list):
        assert isinstance(value, list), where
        for index, inner in enumerate(value):
            check(inner, known[0], f"{where}[{index}]")
    elif isinstance(known, tuple):
        assert value in known, f"{where} is one of {known}, not {value!r}"
    else:
        assert type(value) is known, f"{where} is a {known.__name__}, not {value!r}"


@pytest.mark.parametrize("name", ["rbac.yaml", "checkpoint.yaml"])
def test_core_kinds_are_what_the_api_takes(name: str) -> None:
    for document in documents(name):
        kubernetes_validate.validate(document, VERSION, strict=True)


@pytest.mark.parametrize("who", ["driver", "executor"])
def test_pod_templates_are_pods_and_the_same_everywhere(who: str) -> None:
    (template,) = documents(f"{who}-template.yaml")
    check_pod(template)
    found = {"metadata": template["metadata"], "spec": template["spec"]}
    (kubeflow,), (apache,) = documents("kubeflow.yaml"), documents("apache.yaml")
    assert kubeflow["spec"][who]["template"] == found
    assert apache["spec"][f"{who}Spec"]["podTemplateSpec"] == found
    assert template["spec"]["containers"][0]["name"] == f"spark-kubernetes-{who}"
    accounts = {each["metadata"]["name"] for each in documents("rbac.yaml")[1:3]}
    assert template["spec"]["serviceAccountName"] in accounts
    mounts = {each["name"] for each in template["spec"]["containers"][0]["volumeMounts"]}
    assert mounts == {each["name"] for each in template["spec"]["volumes"]}
    (claim,) = documents("checkpoint.yaml")
    claims = [each["persistentVolumeClaim"] for each in template["spec"]["volumes"][1:]]
    assert claims == [{"claimName": claim["metadata"]["name"]}]


@pytest.mark.parametrize(
    ("name", "group", "known"),
    [
        ("kubeflow.yaml", "sparkoperator.k8s.io/v1beta2", KUBEFLOW),
        ("apache.yaml", "spark.apache.org/v1", APACHE),
    ],
)
def test_the_operators_know_every_field(name: str, group: str, known: dict[str, Any]) -> None:
    (found,) = documents(name)
    assert (found["apiVersion"], found["kind"]) == (group, "SparkApplication")
    assert found["metadata"]["namespace"] == "streams"
    check(found["spec"], known, "spec")


def test_a_misspelt_field_is_found() -> None:
    (found,) = documents("kubeflow.yaml")
    found["spec"]["driver"]["serviceaccount"] = "x"
    with pytest.raises(AssertionError, match="no field serviceaccount"):
        check(found["spec"], KUBEFLOW, "spec")
    (template,) = documents("driver-template.yaml")
    template["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.utils.ValidationError):
        check_pod(template)


def test_all_three_ways_run_the_same_thing(tmp_path: Path) -> None:
    (kubeflow,), (apache,) = documents("kubeflow.yaml"), documents("apache.yaml")
    arguments = kubeflow["spec"]["arguments"]
    assert apache["spec"]["driverArgs"] == arguments
    submit = tmp_path / "spark-submit"
    submit.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    submit.chmod(0o755)
    done = subprocess.run(
        [FOLDER / "spark-submit.sh"], capture_output=True, text=True, timeout=30,
        env={"PATH": "/usr/bin:/bin", "K8S": "https://k:6443", "SPARK_SUBMIT": str(submit)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[-len(arguments) :] == arguments
    assert said[-len(arguments) - 1] == kubeflow["spec"]["mainApplicationFile"]
    conf = dict(each.split("=", 1) for each in said if each.startswith("spark."))
    assert apache["spec"]["sparkConf"].items() <= conf.items()
    for who in ("driver", "executor"):
        assert Path(conf[f"spark.kubernetes.{who}.podTemplateFile"]).is_file()
    refused = subprocess.run(
        [FOLDER / "spark-submit.sh"], capture_output=True, text=True, timeout=30,
        env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert refused.returncode != 0
    assert "the address of the Kubernetes API" in refused.stderr

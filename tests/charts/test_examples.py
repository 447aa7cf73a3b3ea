"""examples/kubernetes are manifests that Kubernetes and our own resources' rules accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from apiserver.server import ApiServer
from testkit.http import Http

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "kubernetes").glob("*.yaml"))
PLURALS = {"BrokerCluster": "brokerclusters", "Topic": "topics", "ConsumerGroup": "consumergroups"}


def objects(file: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(file.read_text()) if each]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
async def test_an_example_is_accepted(example: Path) -> None:
    async with ApiServer() as api, Http(api.url) as http:
        headers = {"Authorization": "Bearer admin"}
        for file in (ROOT / "crds").glob("*.yaml"):
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            await http.call("POST", path, json=yaml.safe_load(file.read_text()), headers=headers)
        for each in objects(example):
            if each["kind"] not in PLURALS:
                kubernetes_validate.validate(each, "1.34", strict=True)
                continue
            path = f"/apis/headrace.dev/v1alpha1/namespaces/default/{PLURALS[each['kind']]}"
            made = await http.call(
                "POST", path + "?fieldValidation=Strict", json=each, headers=headers
            )
            assert made.status == 201, made.body


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_programs_in_an_example_compile(example: Path) -> None:
    for each in objects(example):
        if each["kind"] == "ConfigMap":
            for name, text in each["data"].items():
                compile(text, name, "exec")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_pods_of_an_example_are_restricted(example: Path) -> None:
    for each in objects(example):
        if each["kind"] == "Deployment":
            pod = each["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"]
            for container in pod["containers"]:
                assert container["securityContext"]["readOnlyRootFilesystem"]
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
                assert "memory" in container["resources"]["limits"]

"""The chart: linted, rendered over many values, checked against Kubernetes' own schemas and against
what the operator says it needs."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from headrace.operator import settings
from testkit.helm import helm

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "headrace"
CASES = sorted((Path(__file__).parent / "values").glob("*.yaml"))
GOLDEN = ROOT / "tests" / "golden" / "charts"
POLICY_API = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def program() -> str:
    return helm()


def render(program: str, *args: str, release: str = "main") -> list[Manifest]:
    done = subprocess.run(
        [program, "template", release, str(CHART), "--namespace", "queues", *args],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] == kind]


def test_what_the_chart_holds_from_elsewhere_is_fresh() -> None:
    stale = runpy.run_path(str(ROOT / "charts" / "generate.py"))["stale"]()
    assert stale == [], "run `make docs`"


def test_it_has_no_lint(program: str) -> None:
    done = subprocess.run(
        [program, "lint", "--strict", str(CHART)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_values_render_to_what_they_did(program: str, case: Path, request: Any) -> None:
    """Golden files; after a change that is meant, delete the file and run the test once."""
    found = render(program, "--values", str(case), "--api-versions", POLICY_API)
    kept = [each for each in found if each["kind"] != "CustomResourceDefinition"]
    text = yaml.safe_dump_all(kept, sort_keys=True)
    golden = GOLDEN / f"{case.stem}.yaml"
    if not golden.exists():
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
        pytest.fail(f"{golden.name} was missing; look at it and commit it")
    assert text == golden.read_text()


@pytest.mark.parametrize("version", ["1.28", "1.34"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_every_object_is_one_that_kubernetes_knows(program: str, case: Path, version: str) -> None:
    for manifest in render(program, "--values", str(case), "--kube-version", version):
        if "monitoring.coreos.com" not in manifest["apiVersion"]:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_rights_are_those_that_the_operator_documents(program: str) -> None:
    plain = list(yaml.safe_load_all((ROOT / "operator" / "deploy" / "operator.yaml").read_text()))
    for ours, theirs in (("main-headrace-operator", "headrace-operator"),
                         ("main-headrace-operator-nodes", "headrace-operator-nodes")):  # fmt: skip
        chart = {each["metadata"]["name"]: each for each in of_kind(render(program), "ClusterRole")}
        documented = {each["metadata"]["name"]: each for each in of_kind(plain, "ClusterRole")}
        assert chart[ours]["rules"] == documented[theirs]["rules"]


def test_environment_variables_are_settings_of_the_operator(program: str) -> None:
    values = ["--set", "firstCluster.enabled=true,settings.resync_seconds=30,namespaces={queues}"]
    (deployment,) = of_kind(render(program, *values), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each.get("value", "x") for each in container["env"]}
    chosen = settings.load(environment)
    assert chosen.resync_seconds == 30
    assert chosen.namespace_list == ("queues",)
    assert chosen.lease_name == "main-headrace-operator"


def test_rights_follow_the_namespaces(program: str) -> None:
    everywhere = render(program)
    assert len(of_kind(everywhere, "ClusterRoleBinding")) == 2
    some = render(program, "--set", "namespaces={a,b}")
    names = {each["metadata"]["name"] for each in of_kind(some, "ClusterRoleBinding")}
    assert names == {"main-headrace-operator-nodes"}
    places = {each["metadata"]["namespace"] for each in of_kind(some, "RoleBinding")}
    assert places == {"a", "b", "queues"}


def test_custom_resources_outlive_the_chart(program: str) -> None:
    definitions = of_kind(render(program), "CustomResourceDefinition")
    assert len(definitions) == 3
    for each in definitions:
        assert each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        assert each["spec"] == yaml.safe_load(
            (ROOT / "crds" / f"headrace.dev_{each['spec']['names']['plural']}.yaml").read_text()
        )["spec"]  # fmt: skip
    assert of_kind(render(program, "--set", "crds.install=false"), "CustomResourceDefinition") == []


def test_the_first_cluster_is_a_broker_cluster_with_the_charts_image(program: str) -> None:
    values = ["--set", "firstCluster.enabled=true,image.repository=r/headrace,image.tag=1.2"]
    (config,) = of_kind(render(program, *values), "ConfigMap")
    cluster = json.loads(config["data"]["cluster.json"])
    assert cluster["spec"]["image"] == "r/headrace:1.2"
    definition = yaml.safe_load((ROOT / "crds/headrace.dev_brokerclusters.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert set(cluster["spec"]) <= set(schema["properties"]["spec"]["properties"])


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ("replcas=3", "replcas"),
        ("namespaces={A_b}", "namespaces"),
        ("log.level=LOUD", "log"),
        ("firstCluster.enabled=true,namespaces={elsewhere}", "isn't one of `namespaces`"),
        ("flowSchema.enabled=true", "names service accounts"),
        ("serviceAccount.create=false", "serviceAccount.name is needed"),
    ],
)
def test_wrong_values_are_refused_with_a_reason(program: str, values: str, says: str) -> None:
    done = subprocess.run(
        [program, "template", "main", str(CHART), "--set", values],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert says in done.stderr


def test_pods_are_restricted(program: str) -> None:
    pods = [each["spec"]["template"]["spec"] for each in of_kind(render(program), "Deployment")]
    pods += [each["spec"] for each in of_kind(render(program), "Pod")]
    assert len(pods) == 2
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }


def test_every_value_is_described_by_the_schema_and_used() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(values) | {"global"} == set(schema["properties"])
    templates = "".join(file.read_text() for file in (CHART / "templates").rglob("*.*"))
    for name, value in values.items():
        for inner in value if isinstance(value, dict) and name != "resources" else [""]:
            used = f".Values.{name}" + (f".{inner}" if inner and name != "settings" else "")
            assert re.search(re.escape(used) + r"\b", templates), used

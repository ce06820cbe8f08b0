"""What `deploy/` promises to machines that CI does not have: Kubernetes with KubeRay, Docker, Grafana."""

from __future__ import annotations

import copy
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import kubernetes_validate
import promql_parser
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from armor_ray.config import load_config
from armor_ray.serving import metrics
from armor_ray.serving.arguments import ServingArguments
from armor_ray.serving.tokens import require_tokens
from benchmarks.servers import advised_environment

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SCHEMA = yaml.safe_load((ROOT / "tests/fixtures/kuberay.schema.yaml").read_text())
KUBERNETES = "1.33"
MANIFESTS = {name: yaml.safe_load((DEPLOY / f"{name}.yaml").read_text()) for name in ("rayservice", "rayjob")}
RAY = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE).group(1)


def cluster(manifest: dict) -> dict:
    return manifest["spec"].get("rayClusterConfig") or manifest["spec"]["rayClusterSpec"]


def pod_specs(manifest: dict) -> Iterator[dict]:
    for group in (cluster(manifest)["headGroupSpec"], *cluster(manifest)["workerGroupSpecs"]):
        yield group["template"]["spec"]


def container(pod: dict) -> dict:
    [only] = pod["containers"]
    return only


@pytest.mark.parametrize("manifest", MANIFESTS.values(), ids=MANIFESTS)
def test_kuberay_and_kubernetes_accept_the_manifest(manifest):
    jsonschema.validate(manifest, SCHEMA)
    for spec in pod_specs(manifest):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_misspelt_fields_are_refused():
    broken = copy.deepcopy(MANIFESTS["rayservice"])
    cluster(broken)["workerGroupSpecs"][0]["minReplica"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, SCHEMA)
    spec = next(pod_specs(copy.deepcopy(MANIFESTS["rayjob"])))
    container(spec)["env_from"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="env_from"):
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", "spec": spec}, KUBERNETES, strict=True)


@pytest.mark.parametrize("manifest", MANIFESTS.values(), ids=MANIFESTS)
def test_pods_are_safe_and_run_the_pinned_ray(manifest):
    assert cluster(manifest)["rayVersion"] == RAY
    assert cluster(manifest)["authOptions"] == {"mode": "token"}
    for pod in pod_specs(manifest):
        assert pod["securityContext"]["runAsNonRoot"]
        security = container(pod)["securityContext"]
        assert security == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        # Ray counts what the limits say; a request below would overbook the node.
        assert container(pod)["resources"]["limits"]["memory"] == container(pod)["resources"]["requests"]["memory"]
        assert not [variable for variable in container(pod).get("env", []) if "value" in variable and "TOKEN" in variable["name"]]


def test_the_service_serves_what_a_replica_accepts_on_nodes_that_hold_it():
    manifest = MANIFESTS["rayservice"]
    config = ServeDeploySchema.model_validate(yaml.safe_load(manifest["spec"]["serveConfigV2"]))
    [application] = config.applications
    arguments = ServingArguments(**application.args)
    [workers] = cluster(manifest)["workerGroupSpecs"]
    cpus = int(container(workers["template"]["spec"])["resources"]["limits"]["cpu"])
    assert arguments.threads <= cpus
    assert arguments.num_replicas * arguments.threads <= cpus * workers["minReplicas"]
    # Beyond loopback a replica starts only with tokens, which its pod must bring.
    require_tokens(config.http_options.host, arguments.auth)
    pod = workers["template"]["spec"]
    [mount] = [mount for mount in container(pod)["volumeMounts"] if arguments.auth.tokens_file == f"{mount['mountPath']}/tokens"]
    assert [volume["secret"] for volume in pod["volumes"] if volume["name"] == mount["name"]]
    for pod in pod_specs(manifest):
        assert {"name": "serve", "containerPort": config.http_options.port} in container(pod)["ports"]


def test_the_job_runs_a_config_that_is_there_on_no_more_than_the_cluster():
    words = shlex.split(MANIFESTS["rayjob"]["spec"]["entrypoint"])
    assert (ROOT / words[1]).is_file()
    overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    config = load_config(ROOT / words[words.index("--config") + 1], overrides)
    [workers] = cluster(MANIFESTS["rayjob"])["workerGroupSpecs"]
    limits = container(workers["template"]["spec"])["resources"]["limits"]
    assert config.resources.cluster_gpus == int(limits["nvidia.com/gpu"]) * workers["maxReplicas"]
    assert config.resources.cluster_cpus == int(limits["cpu"]) * workers["maxReplicas"]


def test_the_dockerfile_is_clean_pinned_and_copies_what_is_there():
    # `--no-color`: what it finds stands in the failed assertion.
    lint = [str(Path(sys.executable).parent / "hadolint"), "--no-color", str(DEPLOY / "Dockerfile")]
    assert subprocess.run(lint, capture_output=True, text=True, check=False).stdout == ""
    text = (DEPLOY / "Dockerfile").read_text()
    torch = re.search(r"^torch==.+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE).group()
    assert torch in text
    assert f":{RAY}-py311-" in text
    assert f" ray=={RAY} " in text
    assert all(f"{name}={value}" in text for name, value in advised_environment().items())
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for line in re.findall(r"^COPY --chown=\S+ (.+) \S+$", text, re.MULTILINE) for name in line.split()}
    assert copied == kept
    assert all((ROOT / name).exists() for name in kept)


def test_every_panel_asks_for_a_metric_that_exists():
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    exported = {sample for family in metrics.REGISTRY.collect() for sample in _sample_names(family)}
    asked = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            # Grafana's own variables are filled in before Prometheus sees them.
            query = promql_parser.parse(target["expr"].replace("$__rate_interval", "5m"))
            names = set(re.findall(r"\barmor_ray_\w+", query.prettify()))
            assert names, panel["title"]
            asked |= names
    assert asked <= exported


def _sample_names(family) -> set[str]:
    """A family's names as Prometheus stores them; one without labels set yet has no samples to look at."""
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
    return {family.name + suffix for suffix in suffixes[family.type]}

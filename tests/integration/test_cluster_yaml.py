"""cluster.yaml against Ray's own schema and defaults, and against what the product promises about it."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster() -> dict:
    return yaml.safe_load((ROOT / "cluster.yaml").read_text())


def test_ray_accepts_it(cluster):
    validate_config(prepare_config(copy.deepcopy(cluster)))


def test_ray_refuses_a_misspelt_key(cluster):
    broken = copy.deepcopy(cluster)
    broken["available_node_types"]["gpu_worker"]["min_worker"] = 1
    prepared = prepare_config(broken)
    with pytest.raises(jsonschema.ValidationError, match="min_worker"):
        validate_config(prepared)


def test_gpu_workers_come_from_zero_and_are_spot(cluster):
    prepared = prepare_config(copy.deepcopy(cluster))
    head, worker = prepared["available_node_types"]["head"], prepared["available_node_types"]["gpu_worker"]
    assert "GPU" not in head["resources"]
    assert worker["resources"]["GPU"] == 1
    assert (worker["min_workers"], worker["max_workers"]) == (0, prepared["max_workers"])
    assert worker["node_config"]["InstanceMarketOptions"]["MarketType"] == "spot"


def test_dashboard_stays_on_loopback_with_tokens(cluster):
    start = cluster["head_start_ray_commands"][-1]
    assert "--dashboard-host=127.0.0.1" in start
    assert "RAY_AUTH_MODE=token" in start
    assert "RAY_AUTH_MODE=token" in cluster["worker_start_ray_commands"][-1]


def test_one_ray_version_everywhere(cluster):
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE).group(1)
    images = [cluster["docker"]["head_image"], cluster["docker"]["worker_image"]]
    assert all(f":{pinned}-" in image for image in images)
    assert f"=={pinned}" in cluster["setup_commands"][0]

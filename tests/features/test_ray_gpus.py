"""GPUs of a cluster that nobody asked for are noticed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ogkd.features.ray_cluster import unused_gpus

NODES = [
    {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}},
    {"Alive": True, "Resources": {"CPU": 4.0}},
    {"Alive": False, "Resources": {"GPU": 4.0}},
]


@pytest.mark.parametrize(
    ("gpus", "device", "expected"), [(0.0, "auto", 2.0), (1.0, "auto", 0.0), (0.0, "cpu", 0.0)]
)
def test_workers_without_gpus_on_a_cluster_that_has_some(gpus, device, expected):
    assert unused_gpus(SimpleNamespace(nodes=lambda: NODES), gpus, device) == expected

"""GPUs of a cluster are used unless somebody asks for none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ogkd.errors import ConfigError
from ogkd.features.ray_cluster import gpus_for

NODES = [
    {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}},
    {"Alive": True, "Resources": {"CPU": 4.0}},
    {"Alive": False, "Resources": {"GPU": 4.0}},
]


@pytest.mark.parametrize(
    ("asked", "count", "device", "expected"),
    [
        (None, None, "auto", 1.0),
        (None, 2, "cuda", 1.0),
        (None, 3, "auto", 0.5),  # two on one GPU
        (None, 5, "auto", 1 / 3),
        (0.0, None, "auto", 0.0),
        (0.25, None, "auto", 0.25),
        (None, None, "cpu", 0.0),
    ],
)
def test_each_worker_has_a_gpu_or_a_share_of_one(asked, count, device, expected):
    assert gpus_for(SimpleNamespace(nodes=lambda: NODES), asked, count, device) == expected


def test_without_gpus_there_is_nothing_to_give():
    assert gpus_for(SimpleNamespace(nodes=lambda: NODES[1:]), None, 4, "auto") == 0.0


def test_a_numbered_gpu_means_nothing_on_a_cluster():
    with pytest.raises(ConfigError, match="cuda:1 has no meaning"):
        gpus_for(SimpleNamespace(nodes=lambda: NODES), None, None, "cuda:1")

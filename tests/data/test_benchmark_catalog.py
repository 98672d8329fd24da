"""The eleven records against the shipped banks, the presets and real split files."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from pathlib import Path

import pytest

import ogkd.methods
import ogkd.prompts
from ogkd.data.catalog import benchmark, benchmarks, find_benchmark
from ogkd.data.fetch import named_benchmark
from ogkd.data.read import read_dataset
from ogkd.data.splits import base_and_novel
from ogkd.methods import presets

BANKS = Path(ogkd.prompts.__file__).parent / "banks"
NAMES = [
    "btmri", "busi", "chmnist", "covid", "ctkidney", "dermamnist",
    "kneexray", "kvasir", "lungcolon", "octmnist", "retina",
]  # fmt: skip


def test_there_are_eleven_named_like_the_banks_with_their_presets() -> None:
    assert list(benchmarks()) == NAMES == sorted(path.stem for path in BANKS.glob("*.json"))
    assert sum(len(record.class_names) for record in benchmarks().values()) == 56
    known = presets("ogkd")
    for name, record in benchmarks().items():
        assert f"paper/few-shot/{name}" in known
        assert (f"paper/base-to-novel/{name}" in known) == record.base_to_novel


@pytest.mark.parametrize("name", NAMES)
def test_base_classes_are_the_first_half_rounded_up(name: str) -> None:
    record = benchmark(name)
    assert record.base == math.ceil(len(record.class_names) / 2)
    assert set(record.normal) <= set(record.class_names)
    for numbers, names in zip(
        base_and_novel(record.class_names),
        (record.base_classes, record.novel_classes),
        strict=True,
    ):
        assert tuple(record.class_names[label] for label in numbers) == names


@pytest.mark.parametrize("name", NAMES)
def test_the_classes_are_those_of_the_bank(name: str) -> None:
    bank = json.loads((BANKS / f"{name}.json").read_text(encoding="utf-8"))
    folded = {key.replace("_", " ").casefold() for key in bank}
    assert {label.casefold() for label in benchmark(name).class_names} == folded


@pytest.mark.parametrize("name", NAMES)
def test_a_class_that_says_normal_or_healthy_is_marked(name: str) -> None:
    record = benchmark(name)
    said = [label for label in record.class_names if {"normal", "healthy"} & set(label.split())]
    benign_tissue = [label for label in record.class_names if label.endswith("benign tissue")]
    assert list(record.normal) == [
        label for label in record.class_names if label in said + benign_tissue
    ]


def test_addresses_are_https_and_name_the_archive() -> None:
    hub = "https://huggingface.co/datasets/TahaKoleilat/BiomedCoOp/resolve/main"
    assert benchmark("btmri").url == f"{hub}/BTMRI.zip"
    assert benchmark("covid").url == f"{hub}/COVID_19.zip"
    for record in benchmarks().values():
        assert record.url == f"{hub}/{record.archive}"
        assert str(record.split_url).startswith("https://")
        assert str(record.split_url).endswith(f"/{record.folder}/{record.split_file}")
        assert record.citation.endswith(".")
        assert record.licence


def test_hashes_are_those_of_the_seen_split_files(shared: Path) -> None:
    lines = (shared / "splits" / "SHA256SUMS").read_text().split("\n")
    seen = {file: sha256 for sha256, _, file in (line.partition("  ") for line in lines if line)}
    recorded = {
        record.split_file: record.split_sha256
        for record in benchmarks().values()
        if record.split_sha256
    }
    assert recorded == seen


@pytest.mark.parametrize("name", ["btmri", "busi", "kvasir", "retina"])
def test_a_real_split_file_agrees_in_every_respect(shared: Path, tmp_path: Path, name: str) -> None:
    record = benchmark(name)
    file = shared / "splits" / record.split_file
    assert hashlib.sha256(file.read_bytes()).hexdigest() == record.split_sha256
    dataset = read_dataset(file, root=tmp_path)
    assert Counter(case.split for case in dataset.cases) == record.counts.model_dump()
    assert dataset.names == record.class_names
    # The folder says the class too: a second, independent witness of each label.
    for case in dataset.cases:
        folder = case.image.file.relative_to(tmp_path).parts[0]
        assert folder.replace("_", " ").lower() == dataset.names[case.target].lower()


def test_classes_and_labels_agree_with_the_shared_images(shared: Path) -> None:
    described = json.loads((shared / "data" / "MANIFEST.json").read_text())["datasets"]
    assert {record.folder for record in benchmarks().values()} == set(described)
    for record in benchmarks().values():
        for facts in described[record.folder]["classes"].values():
            assert record.class_names[facts["label"]] == facts["classname"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (" BTMRI ", "btmri"),
        ("COVID_19", "covid"),
        ("covid-19", "covid"),
        ("Covid QU Ex", "covid"),
        ("LC25000", "lungcolon"),
        ("_", None),
        ("", None),
        ("covid19x", None),
    ],
)
def test_one_rule_finds_a_dataset_by_its_name_folder_or_title(name: str, found: str | None) -> None:
    record = find_benchmark(name)
    assert (None if record is None else record.name) == found
    assert named_benchmark(name) == record  # what `fit` and `evaluate` take

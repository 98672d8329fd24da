"""Two models fitted on phantoms, and one server that many tests ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from app_client import Server, started
from app_models import by_hand

import ogkd
from ogkd.data.phantoms import write_folder
from ogkd.model.load import load
from tiny_data import write_exams


@pytest.fixture(scope="session")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """{train,test} of four classes of ultrasound phantoms."""
    out = tmp_path_factory.mktemp("phantoms") / "us"
    return write_folder("us-breast", out, splits={"train": 6, "test": 2}, size=128)


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of another modality."""
    out = tmp_path_factory.mktemp("phantoms") / "endoscopy"
    write_folder("endoscopy", out, splits={"test": 1}, size=128)
    return min(out.rglob("*.png"))


@pytest.fixture(scope="session")
def folders(phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`gda`, calibrated, and `zero`, which is not."""
    root = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGKD_CACHE", str(tmp_path_factory.mktemp("cache")))
        fitted = ogkd.fit(phantoms, method="gda", out=root / "gda")
        ogkd.fit(phantoms, method="zero-shot", out=root / "zero")
    fitted.calibration = by_hand()
    fitted.save(root / "gda")
    return root


@pytest.fixture(scope="session")
def server(
    folders: Path, phantoms: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """`ogkd app` with both models, as a user starts it; ended as a user ends it."""
    pytest.importorskip("uvicorn")
    with started(tmp_path_factory.mktemp("server"), folders / "gda", folders / "zero") as running:
        yield running


@pytest.fixture(scope="session")
def exams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of exams of four images."""
    return write_exams(tmp_path_factory.mktemp("exams"), per_class=4, splits="train,test")


@pytest.fixture(scope="session")
def case_model(
    exams: Path, bert_backbone: ogkd.Backbone, tmp_path_factory: pytest.TempPathFactory
) -> ogkd.Classifier:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGKD_CACHE", str(tmp_path_factory.mktemp("cache")))
        return ogkd.fit(exams, backbone=bert_backbone, cases="exam", normal=["normal"])


@pytest.fixture(scope="session")
def gda(folders: Path) -> ogkd.Classifier:
    return load(folders / "gda")

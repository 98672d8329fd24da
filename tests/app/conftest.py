"""Two models fitted on phantoms, and one server that many tests ask."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ogkd
import ogkd.serve
from ogkd.data.phantoms import write_folder
from ogkd.data.tasks import OneOf
from ogkd.model.calibration import Calibration
from ogkd.model.load import load
from tiny_data import write_exams
from web_client import Server, started


@pytest.fixture(scope="session")
def by_hand() -> Callable[..., Calibration]:
    """A calibration whose sets hold every class with a probability of at least 1 - limit."""

    def make(limit: float = 0.55) -> Calibration:
        labels = np.arange(200) % 4
        logits = 30.0 * np.eye(4)[labels]
        logits[::5] = 10.0 * np.eye(4)[(labels[::5] + 1) % 4]  # one in five is wrong, less sure
        keys = [hashlib.sha256(bytes([number])).hexdigest()[:16] for number in range(200)]
        fitted = Calibration.fit(OneOf(("a", "b", "c", "d")), logits, labels, keys)
        [question] = fitted.questions
        scores = tuple((1 - limit,) * len(row) for row in question.scores)
        question = question.model_copy(update={"scale": 0.1, "scores": scores})
        return fitted.model_copy(update={"questions": (question,)})

    return make


@pytest.fixture(scope="session")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """{train,test} of four classes of ultrasound phantoms."""
    out = tmp_path_factory.mktemp("phantoms") / "us"
    return write_folder("us-breast", out, splits={"train": 6, "test": 2}, size=128)


@pytest.fixture(scope="session")
def cyst(phantoms: Path) -> Path:
    return phantoms / "test" / "simple_cyst" / "0000.png"


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of another modality."""
    out = tmp_path_factory.mktemp("phantoms") / "endoscopy"
    write_folder("endoscopy", out, splits={"test": 1}, size=128)
    return min(out.rglob("*.png"))


@pytest.fixture(scope="session")
def folders(
    phantoms: Path, by_hand: Callable[..., Calibration], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """`gda`, calibrated, and `zero`, which is not."""
    root = tmp_path_factory.mktemp("models")
    fitted = ogkd.fit(phantoms, method="gda", out=root / "gda")
    ogkd.fit(phantoms, method="zero-shot", out=root / "zero")
    fitted.calibration = by_hand()
    fitted.save(root / "gda")
    return root


@pytest.fixture(scope="session")
def server(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`ogkd app` with the calibrated model, as a user starts it; ended as a user ends it."""
    pytest.importorskip("uvicorn")
    with started(tmp_path_factory.mktemp("server"), folders / "gda") as running:
        yield running


@pytest.fixture(scope="session")
def gda(folders: Path) -> ogkd.Classifier:
    return load(folders / "gda")


@pytest.fixture(scope="session")
def exams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of exams of four images."""
    return write_exams(tmp_path_factory.mktemp("exams"), per_class=4, splits="train,test")


@pytest.fixture(scope="session")
def case_model(exams: Path, bert_backbone: ogkd.Backbone) -> ogkd.Classifier:
    return ogkd.fit(exams, backbone=bert_backbone, cases="exam", normal=["normal"])


@pytest.fixture(scope="session")
def fits() -> Callable[[Any, Any], bool]:
    """Whether a value is what a schema of openapi.json says."""
    spec = json.loads(Path(ogkd.serve.__file__).with_name("openapi.json").read_text())
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    kinds |= {"number": (int, float), "integer": int}

    def check(schema: Any, value: Any) -> bool:
        if "$ref" in schema:
            return check(spec["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], value)
        if "const" in schema:
            return bool(value == schema["const"])
        wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(isinstance(value, kinds[kind]) for kind in wanted):
            return False
        if isinstance(value, list):
            return all(check(schema["items"], item) for item in value)
        if isinstance(value, dict):
            known, rest = schema.get("properties", {}), schema.get("additionalProperties")
            return set(schema.get("required", ())) <= set(value) and all(
                bool(part := known.get(name, rest)) and check(part, item)
                for name, item in value.items()
            )
        return True

    return check

from __future__ import annotations

import copy
import getpass
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import normalize

import ogkd
from ogkd.backbones import load_backbone
from ogkd.backbones.base import ImageFeatures
from ogkd.calibration import Calibration
from ogkd.classifier import Classifier
from ogkd.datasets.phantoms import render
from ogkd.errors import ConfigError, StorageError
from ogkd.export import Exported, export_onnx, write
from ogkd.export.card import describe
from ogkd.export.compare import in_batches
from ogkd.export.graph import build
from ogkd.features.views import FixedViews
from ogkd.images import read_image, to_pixels
from ogkd.images.transforms import center_crop
from ogkd.methods import METHODS, Support, TextSide, Workplace, make_method
from ogkd.methods.heads import Head, LinearHead
from tiny_backbones import make_clip, make_dual, make_siglip
from tiny_data import CLASSES, write_dataset, write_image

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

EXAMPLE = Path(__file__).parents[1] / "examples" / "onnx_predict.py"
TEMPERATURE = 2.5


def session_of(model):
    content = model.read_bytes() if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def run(session, pixels):
    return dict(
        zip(
            ("logits", "probabilities", "features"),
            session.run(None, {"pixels": np.asarray(pixels)}),
            strict=True,
        )
    )


def card_of(path):
    return json.loads(session_of(path).get_modelmeta().custom_metadata_map["ogkd"])


def calibration(images=60):
    """Of made-up logits, mostly right; its temperature is set, so that it surely matters."""
    rng = np.random.default_rng(0)
    labels = np.arange(images) % 3
    logits = 2 * rng.normal(size=(images, 3)) + 4 * np.eye(3)[labels]
    fitted = Calibration.fit(logits, labels, [f"{image:016x}" for image in range(images)])
    return fitted.model_copy(update={"temperature": TEMPERATURE})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def data(folder):
    return write_dataset(folder / "data")


@pytest.fixture(scope="module")
def files(data, folder):
    """Pictures of several shapes, one of them a phantom."""
    wide = write_image(folder / "wide.png", 5, size=(33, 90))
    tall = write_image(folder / "tall.png", 6, size=(121, 50))
    Image.fromarray(render("us-breast", 1, seed=0, index=0).image).save(folder / "phantom.png")
    return [*sorted((data / "test").rglob("*.png")), wide, tall, folder / "phantom.png"]


@pytest.fixture(scope="module")
def model(data, folder):
    """A fitted and calibrated model on a tiny CLIP."""
    make_clip(folder / "secret-clip")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGKD_CACHE", str(folder / "cache"))
        fitted = ogkd.fit(data, backbone=folder / "secret-clip", method="gda", device="cpu")
    # A gentle head: probabilities near 0 and 1 would hide mistakes.
    rng = torch.Generator().manual_seed(3)
    head = LinearHead(6 * torch.randn(fitted.head.shape, generator=rng), torch.zeros(3))
    return Classifier(fitted.backbone, head, fitted.card, calibration=calibration())


@pytest.fixture(scope="module")
def exported(model, files, folder) -> Exported:
    return export_onnx(model, folder / "model.onnx", images=files, max_risk=0.5)


def with_backbone(make, folder, model):
    """A gentle head on another tiny backbone."""
    make(folder)
    backbone = load_backbone(folder, device="cpu")
    rng = torch.Generator().manual_seed(2)
    head = LinearHead(4 * torch.randn(3, backbone.embed_dim, generator=rng), torch.zeros(3))
    return Classifier(backbone, head, model.card)


@pytest.fixture(scope="module")
def siglip(folder, model):
    return with_backbone(make_siglip, folder / "siglip", model)


@pytest.fixture(scope="module")
def small(siglip, files, folder) -> Exported:
    """Another family, bytes in, 8 bits inside: one export of seconds for all three."""
    labels = siglip.predict_proba(files).argmax(axis=1)
    path = folder / "small.onnx"
    return export_onnx(
        siglip, path, images=files, labels=labels, int8=True, include_preprocessing=True
    )


@pytest.mark.parametrize("count", [1, 3, 9])
def test_the_file_gives_the_models_probabilities_for_any_number_of_images(
    exported, model, files, count
):
    pixels = to_pixels([read_image(path) for path in files[:count]], model.backbone.preprocessing)
    found = run(session_of(exported.path), pixels)
    np.testing.assert_allclose(
        found["probabilities"], model.predict_proba(files[:count]), atol=1e-4
    )
    features = model.backbone.encode_images(pixels).globals
    np.testing.assert_allclose(found["features"], features, atol=1e-5)
    np.testing.assert_allclose(found["logits"], model.logits(features), atol=1e-3)


def test_probabilities_are_those_of_the_calibration_and_logits_are_not(exported, model, files):
    pixels = to_pixels([read_image(path) for path in files], model.backbone.preprocessing)
    found = run(session_of(exported.path), pixels)
    odds = np.exp(found["logits"] / TEMPERATURE)
    np.testing.assert_allclose(
        found["probabilities"], odds / odds.sum(axis=1, keepdims=True), atol=1e-5
    )
    plain = Classifier(model.backbone, model.head, model.card)
    assert np.abs(plain.predict_proba(files) - found["probabilities"]).max() > 0.01


def test_the_report_says_what_was_compared(exported, files):
    assert exported.images == 10
    assert exported.phantoms == 10 - len(files)
    assert 0 <= exported.largest_difference <= 1e-4
    assert exported.bytes == exported.path.stat().st_size
    assert set(exported.images_per_second) == {"torch", "onnx"}
    assert exported.int8 is None


def test_the_file_describes_itself(exported, model):
    card = card_of(exported.path)
    prep = model.backbone.preprocessing
    assert card["class_names"] == list(CLASSES)
    assert card["input"] == {
        "name": "pixels",
        "type": "float32",
        "shape": ["N", 3, 32, 32],
        "normalised": True,
    }
    shown = card["preprocessing"]
    assert (shown["size"], shown["resize"], shown["interpolation"]) == (32, "shortest", "bicubic")
    assert (shown["mean"], shown["std"]) == (list(prep.mean), list(prep.std))
    assert card["backbone"] == {"name": "secret-clip", "digest": model.backbone.digest}
    assert (card["method"], card["temperature"]) == ("gda", TEMPERATURE)
    assert card["check"]["largest_difference"] == exported.largest_difference
    assert "not for autonomous clinical use" in card["caution"]


def test_sets_and_threshold_of_the_file_are_the_calibrations_own(exported, model):
    noted = card_of(exported.path)["calibration"]
    p = np.random.default_rng(0).dirichlet([1.0, 1.0, 1.0], 200).astype(np.float32)
    least = noted["sets"]["least_probability"]
    expected = model.calibration.sets(p, coverage=noted["sets"]["coverage"], kind="lac")
    assert np.array_equal(p >= least, expected)
    assert 0 < expected.mean() < 1
    assert noted["abstain"]["below"] == model.calibration.threshold(0.5)


def test_too_few_calibration_images_give_no_sets_and_none_gives_nothing(model):
    few = Classifier(model.backbone, model.head, model.card, calibration=calibration(images=6))
    assert describe(few)["calibration"]["sets"] is None
    plain = describe(Classifier(model.backbone, model.head, model.card))
    assert (plain["temperature"], plain["calibration"]) == (1.0, None)


def test_nothing_in_the_file_tells_where_it_was_made(exported, small, folder, files):
    for path in (exported.path, small.path):
        model = onnx.load(path)
        for tensor in model.graph.initializer:
            tensor.ClearField("raw_data")  # weights may hold any bytes
        content = model.SerializeToString()
        words = [".py", "site-packages", str(folder), str(folder.parent), os.sep + "home"]
        words += [file.name for file in files]
        user = getpass.getuser()
        words += [os.sep + user + os.sep, os.sep + "tmp" + os.sep]
        assert [word for word in words if word.encode() in content] == []
        assert not any(node.doc_string or node.metadata_props for node in model.graph.node)


def test_with_preprocessing_inside_bytes_go_in(small, siglip, files):
    session = session_of(small.path)
    (given,) = session.get_inputs()
    assert (given.type, given.shape[1:]) == ("tensor(uint8)", [32, 32, 3])
    crops = [center_crop(read_image(file), siglip.backbone.preprocessing) for file in files]
    found = np.concatenate([run(session, crop[None])["probabilities"] for crop in crops])
    # 8 bits are not exact; what the report says of them must be what is found here.
    difference = np.abs(found - siglip.predict_proba(files)).max()
    assert small.int8.largest_difference == pytest.approx(difference, abs=1e-4)
    assert difference < 0.2
    assert card_of(small.path)["input"]["normalised"] is False


def test_int8_is_smaller_and_its_cost_is_noted(small, files):
    cost = small.int8
    assert small.bytes < cost.float32_bytes
    assert cost.images == len(files)
    assert cost.float32_accuracy == 1.0  # the labels are what the model says
    assert cost.accuracy == cost.agreement
    rates = small.images_per_second
    assert cost.speed_gain == pytest.approx(rates["int8"] / rates["onnx"])
    assert card_of(small.path)["int8"]["accuracy"] == cost.accuracy
    assert small.largest_difference <= 1e-4  # of the float32 graph that it was made from
    kinds = [node.op_type for node in onnx.load(small.path).graph.node]
    assert "MatMulInteger" in kinds
    assert "MatMul" in kinds or "Gemm" in kinds  # the head, at least


class Together(Head):
    """All heads in one, so that one export tells about every method."""

    def __init__(self, heads):
        self.heads = heads

    @property
    def shape(self):
        return sum(head.shape[0] for head in self.heads), self.heads[0].shape[1]

    def logits(self, features):
        return torch.cat([head.logits(features) for head in self.heads], dim=-1)

    def tensors(self):
        return {}


def heads_of_all_methods(backbone):
    rng = torch.Generator().manual_seed(0)
    patches = backbone.patch_grid[0] * backbone.patch_grid[1]

    def unit(*shape):
        return normalize(torch.randn(*shape, generator=rng), dim=-1)

    d, labels = backbone.embed_dim, torch.arange(3).repeat_interleave(3)
    views = FixedViews(ImageFeatures(unit(9, 1, d), unit(9, 1, patches, d).half()))
    support = Support(views, labels, (unit(6, d), torch.arange(3).repeat(2)))
    names = ("cyst", "stone", "tumor")
    prompts = tuple((f"a {name}", f"one bright {name}", f"no {name}") for name in names)
    for name in sorted(METHODS):
        fast = {"train.epochs": 1} if METHODS[name].needs_training else {}
        method = make_method(name, settings=fast)
        supports = [support] if method.needs_images else []
        text = TextSide(backbone, names, prompts)
        yield name, method.fit(supports, text, seeds=[1], workplace=Workplace())[0]


@pytest.fixture(scope="module")
def heads(bert_backbone):
    return dict(heads_of_all_methods(bert_backbone))


def test_heads_of_all_methods_but_cocoop_are_exported(heads, bert_backbone, model):
    usable = [head for name, head in heads.items() if name != "cocoop"]
    assert len(usable) == len(METHODS) - 1
    together = Together(usable)
    graph = build(Classifier(bert_backbone, together, model.card))
    size = bert_backbone.preprocessing.size
    pixels = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))
    features = bert_backbone.encode_images(pixels).globals
    found = run(session_of(graph), pixels)["logits"]
    expected = together.logits(features).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4 * max(1.0, np.abs(expected).max()))


def test_a_dual_encoder_is_exported(model, tmp_path):
    classifier = with_backbone(make_dual, tmp_path / "dual", model)
    pixels = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(4))
    found = run(session_of(build(classifier)), pixels)["probabilities"]
    expected = classifier.probabilities(classifier.backbone.encode_images(pixels).globals)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def example(model, files):
    """What the example prints: for each file, each class's probability."""
    block = (
        "import runpy, sys; sys.modules.update(ogkd=None, torch=None, onnx=None); "
        f"sys.argv = sys.argv[1:]; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    )
    words = [sys.executable, "-c", block, EXAMPLE, model, *files]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True)
    found = []
    for line, file in zip(done.stdout.splitlines(), files, strict=True):
        path, *ranked = line.split("\t")
        assert path == str(file)
        pairs = [entry.rsplit(" ", 1) for entry in ranked]
        shares = [float(share) for _, share in pairs]
        assert shares == sorted(shares, reverse=True)
        found.append([float(dict(pairs)[name]) for name in CLASSES])
    return found


def test_the_example_agrees_with_the_model_without_torch_and_ogkd(exported, model, files):
    np.testing.assert_allclose(example(exported.path, files), model.predict_proba(files), atol=1e-4)
    assert len(EXAMPLE.read_text().splitlines()) <= 32


def test_the_example_gives_bytes_where_the_file_wants_them(small, siglip, files):
    session = session_of(small.path)
    crops = [center_crop(read_image(file), siglip.backbone.preprocessing) for file in files]
    expected = [run(session, crop[None])["probabilities"][0] for crop in crops]
    np.testing.assert_allclose(example(small.path, files), expected, atol=1e-5)


def test_batches_come_in_the_sizes_that_are_checked():
    assert [len(batch) for batch in in_batches(range(26))] == [1, 2, 7, 7, 7, 2]
    assert [len(batch) for batch in in_batches(range(3), (1,))] == [1, 1, 1]


# What is refused, and that nothing is left behind.


@pytest.fixture
def refuse(model, tmp_path, monkeypatch):
    """Export something changed; the message, once it is sure that no file is there."""

    def run(path=None, match="", *, kind=ConfigError, graph=None, options=None, **changes):
        if graph is not None:
            monkeypatch.setattr(write, "build", lambda *_, **__: onnx.load(graph))
        parts = {"backbone": model.backbone, "head": model.head, "card": model.card, **changes}
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(kind, match=match):
            export_onnx(Classifier(**parts), path or tmp_path / "out.onnx", **(options or {}))
        assert sorted(tmp_path.rglob("*")) == before

    return run


def test_a_graph_that_differs_from_torch_is_not_left(refuse, exported, model, tmp_path):
    # The stored graph has a temperature that this classifier has not.
    refuse(match="differs from torch by .* Nothing was written", graph=exported.path)
    old = tmp_path / "old.onnx"
    old.write_bytes(b"what was there")
    refuse(old, match="differs from torch", graph=exported.path)
    assert old.read_bytes() == b"what was there"


def test_a_graph_that_gives_no_number_is_not_left(refuse, exported, tmp_path):
    broken = onnx.load(exported.path)
    for tensor in broken.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.raw_data = np.full(len(tensor.raw_data) // 4, np.nan, np.float32).tobytes()
    path = tmp_path / "broken"
    path.write_bytes(broken.SerializeToString())
    refuse(match="differs from torch by nan", graph=path)


def test_models_that_cannot_be_exported_are_refused(refuse, model, heads):
    other = copy.copy(model.backbone)
    other.engine = "int8"
    refuse(match="--encoder-engine torch", backbone=other)
    moved = copy.copy(model.backbone)
    moved.device = torch.device("meta")
    refuse(match='device="cpu"', backbone=moved)
    refuse(match="cocoop writes new texts", head=heads["cocoop"])
    holes = LinearHead(torch.full((3, model.backbone.embed_dim), torch.nan), torch.zeros(3))
    refuse(match=r"not finite \(W\)", head=holes)
    refuse(match="ogkd calibrate", options={"max_risk": 0.1})
    refuse(match="1 labels for 0 images", options={"labels": [0]})


def test_places_that_cannot_be_written_are_refused(refuse, tmp_path):
    refuse(tmp_path, match="is a folder")
    refuse(tmp_path / "model.json", match=r"must end in \.onnx")
    (tmp_path / "file").write_text("")
    refuse(tmp_path / "file" / "m.onnx", kind=StorageError, match="a file stands where a folder")


@pytest.mark.parametrize("name", ["onnx", "onnxruntime", "onnxscript"])
def test_without_the_extra_the_message_says_how_to_get_it(refuse, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    refuse(match=rf'needs the package {name}, .* pip install "ogkd\[onnx\]"')

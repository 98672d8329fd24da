"""Cases on the page, of both tasks and of one or several images: answers, and what decided."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

pytest.importorskip("starlette")
from starlette.testclient import TestClient

import ogkd
from ogkd.data.grouping import Grouping
from ogkd.data.read import read_dataset
from ogkd.images import ImageRef, read_image
from ogkd.model.decide import Decider
from ogkd.serve.models import Model, answers
from ogkd.serve.server import Settings, make_app
from ogkd.serve.uploads import read_upload
from tiny_data import write_exams
from tiny_images import dicom, volume


def exam_images(table, exam):
    cases = Grouping("exam").apply(read_dataset(table)).cases
    return [image for case in cases if case.name == exam for image in case.images]


@pytest.fixture(scope="module")
def page(case_model, tmp_path_factory):
    """Asks the app itself, without a server: page(body or files) -> status and JSON."""
    folder = tmp_path_factory.mktemp("uploads")
    settings = Settings(max_bytes=10**6)
    app = make_app(Model("exams", Decider(case_model)), folder, settings)
    client = TestClient(app, base_url="http://localhost")

    def run(body, *, name="scan", images=False, **headers):
        query = {"name": name, "images": str(images).lower()}
        sent = {"content": body, "headers": headers}
        if isinstance(body, list):
            sent = {"files": [("file", pair) for pair in body], "data": {"note": "hello"}}
        reply = client.post("/predict", params=query, **sent)
        assert list(folder.iterdir()) == []  # nothing is kept
        return reply.status_code, reply.json()

    return run


def test_several_files_get_one_answer_with_the_image_that_decided(page, case_model, exams, fits):
    images = exam_images(exams, "test spot 2")
    files = [(image.name, image.file.read_bytes()) for image in images]
    status, body = page(files, images=True)
    assert status == 200, body
    [answer] = body["models"]
    [expected] = case_model.decide({"x": images})
    assert answer["prediction"] == expected.prediction == "spot"
    names = case_model.class_names
    assert [answer["probabilities"][n] for n in names] == pytest.approx(
        expected.probabilities, abs=1e-5
    )
    assert answer["images"] == 4
    first = answer["decided_by"][0]
    assert first["path"] == "spot-2-2.png"
    assert first["weight"] == pytest.approx(expected.deciding[0].weight, abs=1e-3)
    assert first["image"].startswith("data:image/jpeg;base64,")
    assert body["image"]["name"] == "spot-2-0.png and 3 more"
    assert answer["evidence"]["class"] == "spot"
    assert fits({"$ref": "#/components/schemas/Answer"}, body)
    assert "image" not in page(files)[1]["models"][0]["decided_by"][0]


def test_a_volume_is_answered_by_its_slices(page, case_model, tmp_path):
    content = volume(tmp_path / "a.nii").read_bytes()
    status, body = page(gzip.compress(content), name="scan.nii.gz")
    assert status == 200, body
    case = body["models"][0]
    assert case["images"] == 16  # the empty slices are left out
    parts = [f"axis=2,index={index}" for index in range(4, 20)]
    [expected] = case_model.decide({"v": [ImageRef(tmp_path / "a.nii", part) for part in parts]})
    assert body["models"][0]["prediction"] == expected.prediction
    assert [part["path"] for part in case["decided_by"]] == [
        f"scan.nii.gz#{part.image.part}" for part in expected.deciding
    ]


def test_two_studies_in_one_upload_get_two_answers_with_their_names(page, exams, tmp_path, fits):
    files = []
    for study, exam in (("1.1", "test spot 2"), ("1.2", "test normal 2")):
        for number, image in enumerate(exam_images(exams, exam)):
            pixels = np.asarray(read_image(image))[:, :, 0]
            uids = {"StudyInstanceUID": study, "SeriesInstanceUID": f"{study}.{number}"}
            entry = dicom(tmp_path / f"{study}-{number}.dcm", pixels, StudyDescription=exam, **uids)
            files.append((entry.name, entry.read_bytes()))
    status, body = page(files[::2] + files[1::2], images=True)
    assert status == 200, body
    assert [(entry["case"], entry["images"]) for entry in body["models"]] == [
        ("study (test spot 2): 1.1-0.dcm and 3 more", 4),
        ("study (test normal 2): 1.2-0.dcm and 3 more", 4),
    ]
    assert [entry["prediction"] for entry in body["models"]] == ["spot", "normal"]
    assert fits({"$ref": "#/components/schemas/Answer"}, body)


def test_a_case_without_a_usable_image_is_named_beside_the_answers_for_the_others(page, tmp_path):
    rng = np.random.default_rng(0)
    files = []
    for study, most in (("1.1", 255), ("1.2", 1)):  # the second is a blank clip
        frames = rng.integers(0, most, (3, 16, 16)).astype(np.uint8)
        entry = dicom(tmp_path / f"{study}.dcm", frames, frames=True, StudyInstanceUID=study)
        files.append((entry.name, entry.read_bytes()))
    status, body = page(files)
    assert status == 200, body
    [entry] = body["models"]
    assert entry["case"] == "study 1.1: 1.1.dcm"
    assert "Not answered: study 1.2: 1.2.dcm: 1.2.dcm is blank" in entry["note"]


def test_files_that_cannot_be_read_are_named_and_the_others_answered(page, exams):
    good = next((exams.parent / "test").glob("*.png")).read_bytes()
    _, body = page([("bad.svs", b"no image"), ("cut.png", good[:90]), ("good.png", good)])
    assert body["models"][0]["images"] == 1
    assert body["image"]["note"].startswith(
        "Not used (2): bad.svs: The file is not a readable image"
    )
    assert "cut.png: The file is damaged" in body["image"]["note"]
    status, body = page([("bad.svs", b"no image"), ("worse.npz", b"")])
    assert (status, body["error"][:8]) == (422, "bad.svs:")
    status, body = page(b"no image")
    assert (status, body["error"][:12]) == (422, "The file is ")
    assert page(b"")[0] == 400
    for kind in ("multipart/form-data", "multipart/form-data; boundary=x"):
        assert page(b"text", **{"content-type": kind})[0] == 400


def test_a_model_of_single_images_answers_each_file_by_one_slice(gda, tmp_path):
    upload = read_upload({volume(tmp_path / f"{name}.nii"): name for name in "ab"})
    assert upload.note.count("axis=2,index=middle is used") == 2
    given = answers(Model("m", Decider(gda)), upload, images=False)
    assert [(answer["case"], answer["images"]) for answer in given] == [
        ("a", 1),
        ("b", 1),
    ]


@pytest.mark.parametrize("findings", [False, True])
@pytest.mark.parametrize("images", [1, 3])
def test_the_page_answers_as_the_decider_does(bert_backbone, tmp_path, fits, findings, images):
    table = write_exams(tmp_path, per_class=4, images=images, findings=findings)
    options = {"cases": "exam"} if images > 1 else {}
    options |= {"findings": ["spot", "streak"]} if findings else {}
    model = ogkd.fit(table, backbone=bert_backbone, **options)
    chosen = exam_images(table, "train spot 1")
    upload = read_upload({image.file: image.name for image in chosen}, whole=True)
    decider = Decider(model)
    [answer] = answers(Model("m", decider), upload, images=True)
    [decision] = decider.decide(upload.cases(model.card.grouping))
    assert answer["prediction"] == decision.prediction
    expected = dict(zip(model.class_names, decision.probabilities, strict=True))
    assert answer["probabilities"] == pytest.approx(expected, abs=1e-5)
    assert answer.get("answers") == (
        dict(zip(model.class_names, decision.answer.verdicts, strict=True)) if findings else None
    )
    assert answer["images"] == images
    assert answer["evidence"]["class"] in model.class_names
    assert fits({"$ref": "#/components/schemas/ModelAnswer"}, answer)

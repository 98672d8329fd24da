"""Exams, volumes and clips on the page: one answer, and the pictures that decided it."""

from __future__ import annotations

import asyncio
import gzip
import json
from email import message_from_bytes
from pathlib import Path

import numpy as np
import pytest
from test_app_server import fits

from ogkd.app import models
from ogkd.app.models import Model, load_models
from ogkd.app.multipart import boundary_of, write_parts
from ogkd.app.server import Settings, make_app
from ogkd.app.web import openapi
from ogkd.datasets.read import read_manifest
from ogkd.errors import DataError
from ogkd.images import ImageRef, read_image
from ogkd.model.decide import Decider
from ogkd.model.load import load
from tiny_images import dicom, volume

BOUNDARY = b"----x7"


def form(files, boundary=BOUNDARY):
    """The body of a form with these (name, content) files, and one field that is not a file."""
    parts = [b'Content-Disposition: form-data; name="note"\r\n\r\nhello']
    for name, content in files:
        head = f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n'
        parts.append(head.encode() + b"Content-Type: application/octet-stream\r\n\r\n" + content)
    return b"".join(b"--%b\r\n%b\r\n" % (boundary, p) for p in parts) + b"--%b--\r\n" % boundary


async def chunked(body, size):
    for start in range(0, len(body), size):
        yield body[start : start + size]


def written(folder: Path, body: bytes, size: int = 10**6):
    names = []

    def place(name):
        names.append(name)
        return folder / str(len(names))

    files = asyncio.run(write_parts(chunked(body, size), BOUNDARY, place))
    return list(zip(names, (file.read_bytes() for file in files), strict=True))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10**6])
def test_files_of_a_form_arrive_whole_however_they_are_cut(tmp_path, size):
    rng = np.random.default_rng(0)
    near = [b"", b"\r\n", b"\r\n--", b"\r\n--" + BOUNDARY[:-1], b"a\r\n\r\n--b", b"x--" + BOUNDARY]
    contents = [*near, rng.bytes(500)]
    files = [(f"{n} ä.png", content) for n, content in enumerate(contents)]
    body = form(files)
    assert written(tmp_path, body, size) == files
    # The standard library's parser of e-mail is the judge of what the body contains.
    head = b"Content-Type: multipart/form-data; boundary=%b\r\n\r\n" % BOUNDARY
    parts = message_from_bytes(head + body).get_payload()
    judged = [part.get_payload(decode=True) for part in parts if part.get_filename()]
    assert judged[1:] == contents[1:]


@pytest.mark.parametrize(
    "body", [b"", b"text", form([("a", b"x")])[:-6], b"--" + BOUNDARY + b"\r\n" + bytes(20_000)]
)
def test_a_form_that_is_damaged_or_cut_short_is_refused(tmp_path, body):
    with pytest.raises(DataError, match="not valid multipart"):
        written(tmp_path, body, 100)


def test_only_forms_have_a_boundary():
    assert boundary_of("image/png") is None
    assert boundary_of('multipart/form-data; boundary="a"') == b"a"
    assert boundary_of("Multipart/Form-Data; charset=utf-8; boundary=--q") == b"--q"
    with pytest.raises(DataError):
        boundary_of("multipart/form-data")


@pytest.fixture(scope="module")
def page(bag_model, tmp_path_factory):
    """Asks the app itself, without a server: page(body, type) -> status and JSON."""
    pytest.importorskip("starlette")
    folder = tmp_path_factory.mktemp("uploads")
    settings = Settings(max_bytes=10**6, max_pixels=300_000)
    app = make_app([Model("exams", Decider(bag_model))], folder, settings)

    async def ask(body, kind, query):
        sent = []

        async def receive():
            return {"type": "http.request", "body": body}

        async def send(message):
            sent.append(message)

        headers = {"host": "localhost", "content-length": str(len(body)), "content-type": kind}
        await app(
            {
                "type": "http",
                "method": "POST",
                "path": "/predict",
                "query_string": query.encode(),
                "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
            },
            receive,
            send,
        )
        assert list(folder.iterdir()) == []  # nothing is kept
        return sent[0]["status"], json.loads(b"".join(m.get("body", b"") for m in sent[1:]))

    def run(body, *, name="scan", pictures=False):
        query = f"name={name}&pictures={str(pictures).lower()}"
        kind = "application/octet-stream"
        if isinstance(body, list):
            body, kind = form(body), f"multipart/form-data; boundary={BOUNDARY.decode()}"
        return asyncio.run(ask(body, kind, query))

    return run


def test_several_files_get_one_answer_with_the_picture_that_decided(page, bag_model, exams):
    items = [i for i in read_manifest(exams, bags="exam").items if i.bag == "test spot 2"]
    files = [(item.image.file.name, item.image.file.read_bytes()) for item in items]
    status, said = page(files, pictures=True)
    assert status == 200, said
    [one] = said["models"]
    [expected] = bag_model.decide({"x": [item.image for item in items]})
    assert one["prediction"] == expected.prediction == "spot"
    names = bag_model.class_names
    assert [one["probabilities"][n] for n in names] == pytest.approx(
        expected.probabilities, abs=1e-5
    )
    assert one["bag"]["pictures"] == 4
    first = one["bag"]["decided_by"][0]
    assert (first["file"], first["part"]) == ("spot-2-2.png", "")
    assert first["share"] == pytest.approx(expected.decided_by[0].share, abs=1e-3)
    assert first["picture"].startswith("data:image/jpeg;base64,")
    assert said["image"]["name"] == "spot-2-0.png and 3 more"
    assert one["evidence"]["class"] == "spot"
    spec = openapi()
    assert fits({"$ref": "#/components/schemas/Answer"}, said, spec)
    assert "picture" not in page(files)[1]["models"][0]["bag"]["decided_by"][0]


@pytest.mark.parametrize("packed", [True, False])
def test_a_volume_is_answered_by_its_slices(page, bag_model, tmp_path, packed):
    content = volume(tmp_path / "a.nii").read_bytes()
    status, said = page(gzip.compress(content) if packed else content, name="scan.nii.gz")
    assert status == 200, said
    bag = said["models"][0]["bag"]
    assert bag["pictures"] == 16  # the empty slices are left out
    parts = [f"axis=2,index={index}" for index in range(4, 20)]
    [expected] = bag_model.decide({"v": [ImageRef(tmp_path / "a.nii", part) for part in parts]})
    assert said["models"][0]["prediction"] == expected.prediction
    assert [one["part"] for one in bag["decided_by"]] == [
        one.image.part for one in expected.decided_by
    ]
    assert {one["file"] for one in bag["decided_by"]} == {"scan.nii.gz"}


def test_a_clip_is_answered_by_its_frames(page, tmp_path):
    frames = np.random.default_rng(0).integers(0, 255, (5, 16, 16)).astype(np.uint8)
    frames[2] = 7  # a blank frame
    _, said = page(dicom(tmp_path / "a.dcm", frames, frames=True).read_bytes(), name="cine")
    bag = said["models"][0]["bag"]
    assert bag["pictures"] == 4
    assert bag["decided_by"][0]["part"].startswith("index=")


def test_what_is_odd_about_a_series_is_said(page, tmp_path):
    rng = np.random.default_rng(0)
    files = []
    for number in (1, 2, 4):
        pixels = rng.integers(0, 255, (16, 16)).astype(np.uint8)
        one = dicom(
            tmp_path / f"{number}.dcm", pixels, SeriesInstanceUID="1.2", InstanceNumber=number
        )
        files.append((one.name, one.read_bytes()))
    _, said = page(files)
    assert "instance 3 is missing" in said["models"][0]["note"]
    assert str(tmp_path) not in json.dumps(said)


def test_two_studies_in_one_upload_get_two_answers_with_their_names(page, exams, tmp_path):
    items = read_manifest(exams, bags="exam").items
    files = []
    for study, bag in (("1.1", "test spot 2"), ("1.2", "test normal 2")):
        for number, item in enumerate(item for item in items if item.bag == bag):
            pixels = np.asarray(read_image(item.image))[:, :, 0]
            uids = {"StudyInstanceUID": study, "SeriesInstanceUID": f"{study}.{number}"}
            one = dicom(tmp_path / f"{study}-{number}.dcm", pixels, StudyDescription=bag, **uids)
            files.append((one.name, one.read_bytes()))
    status, said = page(files[::2] + files[1::2], pictures=True)
    assert status == 200, said
    assert [(one["bag"]["name"], one["bag"]["pictures"]) for one in said["models"]] == [
        ("study (test spot 2): 1.1-0.dcm and 3 more", 4),
        ("study (test normal 2): 1.2-0.dcm and 3 more", 4),
    ]
    assert [one["prediction"] for one in said["models"]] == ["spot", "normal"]
    assert fits({"$ref": "#/components/schemas/Answer"}, said, openapi())


def test_an_exam_without_a_usable_picture_is_named_beside_the_answers_for_the_others(
    page, tmp_path
):
    rng = np.random.default_rng(0)
    files = []
    for study, most in (("1.1", 255), ("1.2", 1)):  # the second is a blank clip
        frames = rng.integers(0, most, (3, 16, 16)).astype(np.uint8)
        one = dicom(tmp_path / f"{study}.dcm", frames, frames=True, StudyInstanceUID=study)
        files.append((one.name, one.read_bytes()))
    status, said = page(files)
    assert status == 200, said
    [one] = said["models"]
    assert one["bag"]["name"] == "study 1.1: 1.1.dcm"
    assert "Not answered: study 1.2: 1.2.dcm: 1.2.dcm is blank" in one["note"]


def test_files_that_cannot_be_read_are_named_and_the_others_answered(page, exams):
    good = next((exams.parent / "test").glob("*.png")).read_bytes()
    _, said = page([("bad.svs", b"no image"), ("cut.png", good[:90]), ("good.png", good)])
    assert said["models"][0]["bag"]["pictures"] == 1
    assert said["image"]["note"].startswith("Not used (2): bad.svs: The file is not a PNG")
    assert "cut.png: The file is damaged" in said["image"]["note"]
    status, said = page([("bad.svs", b"no image"), ("worse.npz", b"")])
    assert (status, said["detail"][:8]) == (422, "bad.svs:")
    status, said = page(b"no image")
    assert (status, said["detail"][:12]) == (422, "The file is ")
    assert page([])[0] == 400


def test_a_volume_that_unpacks_to_too_much_is_refused_unread(page, tmp_path):
    head = bytearray(volume(tmp_path / "a.nii").read_bytes()[:352])
    head[40:48] = np.array([3, 2000, 2000, 500], "<i2").tobytes()
    status, said = page(gzip.compress(bytes(head)))
    assert status == 422
    assert "unpacks to 4.0 GB, more than the limit of 2 GB" in said["detail"]


def test_other_archives_are_not_volumes(page):
    assert page(gzip.compress(b"text"))[0] == 422
    assert page(b"\x1f\x8b" + bytes(30))[0] == 422


def test_a_model_of_single_images_takes_one_file_and_one_slice(gda, tmp_path):
    from ogkd.app.models import answers
    from ogkd.app.uploads import Uploads

    uploads = Uploads(tmp_path, max_pixels=10_000)
    own = uploads.place("a")
    paths = [uploads.place_of_part(own.parent, name) for name in ("a.nii", "b.nii")]
    for path in paths:
        volume(path)
    with pytest.raises(DataError, match="one image at a time"), uploads.take(*paths):
        pass
    alone = uploads.place("scan.nii")
    volume(alone)
    with uploads.take(alone) as upload:
        assert "the slice axis=2,index=middle is used" in upload.note
        assert answers([Model("m", Decider(gda))], upload, pictures=False)[0].bag is None


def test_a_model_of_bags_without_a_calibration_is_served(bag_model, bert_backbone, tmp_path):
    bag_model.save(tmp_path / "m")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "load", lambda folder, **_: load(folder, backbone=bert_backbone))
        [one] = load_models([tmp_path / "m"])
    assert one.decider.policy.coverage is None

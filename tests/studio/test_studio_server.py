"""The studio's routes: what the page asks for, and what others may not."""

from __future__ import annotations

import csv
import io
import signal
import zipfile

import pytest

pytest.importorskip("uvicorn")
import ogkd
from ogkd.serve.studio.project import Project
from web_client import launch, started


@pytest.fixture(scope="module")
def taught(studio):
    """The studio after some twenty labels."""
    studio.label(22)
    studio.judged(22)
    return studio


def test_images_are_listed_and_what_is_wrong_with_them_is_said(studio):
    body, data = studio.state, studio.get("/api/images")
    assert (body["images"], body["unreadable"], body["copies"]) == (35, 1, 1)
    (row,) = data["errors"]
    assert "broken.png" in data["names"][int(row)]
    assert body["unreadable_names"] == [data["names"][int(row)]]
    assert "not a readable image" in data["errors"][row]


def test_labels_teach_a_model_that_knows_how_good_it_is(taught):
    fit = taught.state["fit"]
    assert (fit["learned"], fit["complete"]) == (True, True)
    low, high = fit["judged"]["interval"]
    assert 0 <= low < fit["judged"]["accuracy"] <= high <= 1
    assert fit["judged"]["summary"].startswith(fit["judged"]["basis"])


def test_the_queue_asks_for_no_copy_and_no_broken_file(taught):
    data, rows = taught.get("/api/images"), taught.get("/api/next")["rows"]
    assert rows
    assert not {str(row) for row in rows} & ({*data["errors"]} | {*data["copies"]})
    assert all(data["label"][row] == -1 for row in rows)


def test_one_image_is_explained(taught):
    row = taught.get("/api/next")["rows"][0]
    body = taught.get(f"/api/look/{row}?evidence=1")
    assert sum(body["decision"]["probabilities"].values()) == pytest.approx(1, abs=1e-3)
    assert set(body["evidence"]["check"]) == {"blurred", "marked", "random"}
    thumbnail = taught.client.get(f"/thumb/{row}").headers
    assert (thumbnail["content-type"], thumbnail["cache-control"]) == ("image/jpeg", "no-store")


def test_a_dropped_image_is_answered_by_the_model_of_this_moment(taught, pile):
    image = next(pile.glob("*simple_cyst.png"))
    body = taught.client.post("/predict", content=image.read_bytes()).json()
    assert set(body["models"][0]["probabilities"]) == set(taught.classes)


def test_everything_can_be_taken_along_without_images(taught, tmp_path):
    content = taught.client.get("/api/export").content
    judged = taught.state["fit"]["judged"]
    archive = zipfile.ZipFile(io.BytesIO(content))
    names = archive.namelist()
    assert {"labels.csv", "predictions.csv", "labels.jsonl", "model/model.json"} <= set(names)
    assert not [name for name in names if name.endswith((".png", ".jpg"))]
    assert judged["summary"] in archive.read("README.txt").decode()
    report = archive.read("report.html").decode()
    assert judged["basis"] in report
    assert "learned from or was calibrated on" not in report
    assert "data:image" not in report
    archive.extractall(tmp_path)
    model = ogkd.load(tmp_path / "model")
    assert model.class_names == tuple(taught.classes)
    assert model.calibration is not None
    table = list(csv.DictReader(archive.read("predictions.csv").decode().splitlines()))
    data = taught.get("/api/images")
    assert [line["path"] for line in table] == data["names"]
    assert table[int(*data["errors"])]["error"]
    row = next(r for r, known in enumerate(data["known"]) if known)
    image = taught.folder / data["names"][row]
    expected = dict(zip(model.class_names, model.predict_proba([image])[0], strict=True))
    shown = {name: float(table[row][name]) for name in taught.classes}
    assert shown == pytest.approx(expected, abs=2e-3)
    (decision,) = model.decide([image])
    assert table[row]["set"] == "|".join(decision.set)


def test_two_windows_are_given_different_images_and_told_of_each_other(taught):
    first = taught.get("/api/next?by=one")["rows"]
    second = taught.get("/api/next?by=two")["rows"]
    assert second
    assert not set(first[:4]) & set(second)
    row = first[0]
    said = [
        taught.post("/api/label", row=row, label=taught.classes[n], by=by, seen=0)
        for n, by in enumerate(["one", "two"])
    ]
    assert [reply["status"] for reply in said] == [200, 409]
    assert said[1]["label"] == taught.classes[0]
    assert taught.post("/api/undo", by="one")["row"] == row


def test_patients_are_counted_once_their_pattern_is_known(studio):
    assert studio.state["patients"] is None
    assert studio.post("/api/settings", patient="([^/]+)/[^/]*$")["patients"] == 1  # the folder
    assert studio.post("/api/settings", patient=None)["patients"] is None


def test_no_path_can_be_named(studio, pile):
    for name in ("/etc/passwd", "..%2f..%2fetc/passwd", str(pile), "-1", "99999"):
        for route in ("/thumb/", "/image/", "/api/look/"):
            assert studio.client.get(route + name).status_code in (404, 422)
    for name in ("../../x.png", "/etc/x.png", ".."):
        studio.client.post(f"/api/upload?name={name}", content=b"not an image")
    around = studio.folder.parent.rglob("x.png")
    assert [file for file in around if not file.is_relative_to(studio.folder)] == []


def test_a_killed_server_loses_no_label_and_goes_on(pile, page_of, tmp_path):
    project = tmp_path / "project"
    with launch(tmp_path / "one", pile, "--out", project, command="studio") as server:
        page = page_of(server, project)
        page.begin()
        done = page.label(7)
        server.process.send_signal(signal.SIGKILL)
        server.process.communicate()
    assert set(Project.open(project).labels) == set(done)
    with started(tmp_path / "two", project, command="studio") as server:
        page = page_of(server, project)
        page.begin()
        assert page.state["labelled"] == 7
        assert set(page.label(3)).isdisjoint(done)


def test_an_archive_of_images_becomes_part_of_the_project(pile, page_of, tmp_path):
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for file in sorted(pile.glob("*_*.png"))[:4]:
            archive.write(file, f"some folder/{file.name}")
    with started(tmp_path / "web", "--out", tmp_path / "own", command="studio") as server:
        page = page_of(server, tmp_path / "own")
        assert page.state["images"] == 0
        send = {"params": {"last": "1", "name": "more.zip"}, "content": memory.getvalue()}
        assert server.post("/api/upload", **send).json()["images"] == 4
        wrong = server.post("/api/upload?last=1&name=a.zip", content=b"PK nothing")
        assert (wrong.status_code, page.state["images"]) == (422, 4)
    assert len(list((tmp_path / "own" / "images").rglob("*.png"))) == 4

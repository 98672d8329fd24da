"""The studio over its own socket: what the page asks for, and what others may not."""

from __future__ import annotations

import csv
import io
import json
import signal
import zipfile

import pytest
from studio_world import CLASSES, kind_of, until

pytest.importorskip("uvicorn")
from app_client import started

import ogkd
from ogkd.serve.studio.project import Project


def post(server, path, **body):
    kind = {"Content_Type": "application/json"}
    return server.request("POST", path, json.dumps(body).encode(), **kind)


def state(server):
    return server.request("GET", "/api/state").json


def ready(server):
    return until(lambda: state(server)["stage"] == "ready" and state(server))


def name_classes(server):
    classes = [{"name": name, "normal": "normal" in name} for name in CLASSES]
    reply = post(server, "/api/classes", classes=classes)
    assert reply.status == 200, reply
    return reply.json


def label(server, count):
    """Label what the queue asks for, as a person does; the names of the images."""
    names = server.request("GET", "/api/images").json["names"]
    done = []
    for _ in range(count):
        row = server.request("GET", "/api/next").json["rows"][0]
        reply = post(server, "/api/label", row=row, label=kind_of(names[row]), by="me", seen=0)
        assert reply.status == 200, reply
        done.append(names[row])
    return done


@pytest.fixture(scope="module")
def server(pile, tmp_path_factory):
    folder = tmp_path_factory.mktemp("studio")
    with started(folder, pile, "--out", folder / "project", command="studio") as running:
        ready(running)
        name_classes(running)
        yield running


@pytest.fixture(scope="module")
def taught(server):
    """The server after some twenty labels."""
    label(server, 22)
    until(lambda: (state(server)["fit"]["judged"] or {}).get("labels") == 22)
    return server


def test_images_are_found_and_what_is_wrong_with_them_is_said(server):
    body = state(server)
    assert (body["images"], body["unreadable"], body["copies"]) == (35, 1, 1)
    data = server.request("GET", "/api/images").json
    (row,) = data["errors"]
    assert "broken.png" in data["names"][int(row)]
    assert body["unreadable_names"] == [data["names"][int(row)]]
    assert "not a readable image" in data["errors"][row]


def test_names_alone_already_give_guesses(server):
    until(lambda: state(server)["fit"])
    data = server.request("GET", "/api/images").json
    assert set(data["predicted"]) - {-1} <= set(range(4))  # -1: not read yet
    assert max(data["predicted"]) >= 0


def test_labels_teach_a_model_that_knows_how_good_it_is(taught):
    fit = until(lambda: state(taught)["fit"])
    assert fit["learned"]
    assert fit["complete"]
    assert fit["unlabelled"] >= 8
    judged = fit["judged"]
    assert judged["images"] >= 15
    low, high = judged["interval"]
    assert 0 <= low < judged["accuracy"] <= high <= 1
    assert sum(map(sum, judged["confusion"])) == judged["images"]
    assert judged["counted"] == judged["images"] or judged["fair"]


def test_the_queue_asks_for_no_copy_and_no_broken_file(taught):
    data = taught.request("GET", "/api/images").json
    rows = taught.request("GET", "/api/next").json["rows"]
    assert rows
    assert not {str(row) for row in rows} & ({*data["errors"]} | {*data["copies"]})
    assert all(data["label"][row] == -1 for row in rows)


def test_one_image_is_explained(taught):
    row = taught.request("GET", "/api/next").json["rows"][0]
    body = taught.request("GET", f"/api/look/{row}?evidence=1").json
    assert sum(body["decision"]["probabilities"].values()) == pytest.approx(1, abs=1e-3)
    assert "image" in body["evidence"]
    assert set(body["evidence"]["check"]) == {"blurred", "marked", "random"}
    assert len(body["neighbours"]) == 6
    thumbnail = taught.request("GET", f"/thumb/{row}")
    assert thumbnail.headers["content-type"] == "image/jpeg"
    assert thumbnail.headers["cache-control"] == "no-store"


def test_the_most_similar_image_of_an_image_is_itself_then_its_copy(taught):
    data = taught.request("GET", "/api/images").json
    ((copy, first),) = data["copies"].items()
    rows = taught.request("GET", f"/api/similar/{first}").json["rows"]
    assert set(rows[:2]) == {int(copy), first}
    assert len(rows) == 34


def test_a_dropped_image_is_answered_by_the_model_of_this_moment(taught, pile):
    image = next(pile.glob("*simple_cyst.png"))
    body = taught.classify(image.read_bytes(), image.name)
    assert set(body["models"][0]["probabilities"]) == set(CLASSES)


def test_everything_can_be_taken_along_without_images(taught, tmp_path):
    archive = zipfile.ZipFile(io.BytesIO(taught.request("GET", "/api/export/handover").body))
    names = archive.namelist()
    assert {"labels.csv", "predictions.csv", "labels.jsonl", "model/model.json"} <= set(names)
    assert not [name for name in names if name.endswith((".png", ".jpg"))]
    archive.extractall(tmp_path)
    model = ogkd.load(tmp_path / "model")
    assert model.class_names == tuple(CLASSES)
    assert model.calibration is not None
    table = list(csv.DictReader(archive.read("predictions.csv").decode().splitlines()))
    assert len(table) == 35
    data = taught.request("GET", "/api/images").json
    row = next(r for r, known in enumerate(data["known"]) if known)
    image = taught.temp.parent / "project" / data["names"][row]
    expected = dict(zip(model.class_names, model.predict_proba([image])[0], strict=True))
    shown = {name: float(table[row][name]) for name in CLASSES}
    assert shown == pytest.approx(expected, abs=2e-3)
    (decision,) = model.decide([image])
    assert table[row]["set"] == "|".join(decision.set)
    assert [line["path"] for line in table] == data["names"]
    assert table[int(*data["errors"])]["error"]


def test_the_report_says_that_it_is_about_labels_held_out_in_turn(taught):
    page = taught.request("GET", "/api/export/report")
    assert page.status == 200, page
    assert b"held out in turn" in page.body
    assert b"data:image" not in page.body


def test_labels_of_another_tool_are_taken_and_unknown_names_told(taught):
    names = taught.request("GET", "/api/images").json["names"]
    row = taught.request("GET", "/api/next").json["rows"][-1]
    short = names[row].rpartition("/")[2]
    text = f"path,label\n{short},{CLASSES[1]}\nnowhere.png,{CLASSES[0]}\n"
    reply = taught.request("POST", "/api/import?name=labels.csv", text.encode())
    assert (reply.status, reply.json["labelled"], reply.json["lost"]) == (200, 1, ["nowhere.png"])


def test_two_windows_are_given_different_images(taught):
    first = taught.request("GET", "/api/next?by=one").json["rows"]
    second = taught.request("GET", "/api/next?by=two").json["rows"]
    assert second
    assert not set(first[:4]) & set(second)
    again = taught.request("GET", "/api/next?by=one").json["rows"]  # perhaps by a newer model
    assert again
    assert not set(again) & set(second[:4])


def test_a_second_window_that_disagrees_is_told(taught):
    row = taught.request("GET", "/api/next").json["rows"][0]
    first = post(taught, "/api/label", row=row, label=CLASSES[0], by="one", seen=0)
    second = post(taught, "/api/label", row=row, label=CLASSES[1], by="two", seen=0)
    assert (first.status, second.status) == (200, 409)
    assert second.json["label"] == CLASSES[0]
    assert post(taught, "/api/undo", by="one").json["row"] == row


def test_patients_are_counted_once_it_is_said_where_their_names_are(server):
    assert state(server)["patients"] is None
    reply = post(server, "/api/settings", patient="([^/]+)/[^/]*$")
    assert reply.json["patients"] == 1  # the folder
    assert post(server, "/api/settings", patient=None).json["patients"] is None


def test_an_archive_of_images_becomes_part_of_the_project(pile, tmp_path):
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for file in sorted(pile.glob("*_*.png"))[:4]:
            archive.write(file, f"some folder/{file.name}")
    with started(tmp_path, "--out", tmp_path / "own", command="studio") as empty:
        assert state(empty)["images"] == 0
        send = ("POST", "/api/upload?last=1&name=more.zip", memory.getvalue())
        assert empty.request(*send).json["images"] == 4
        wrong = empty.request("POST", "/api/upload?last=1&name=a.zip", b"PK nothing")
        assert (wrong.status, state(empty)["images"]) == (422, 4)
        until(lambda: state(empty)["encoded"] == 4)
    assert len(list((tmp_path / "own" / "images").rglob("*.png"))) == 4


def test_no_path_can_be_named(server, pile):
    for name in ("/etc/passwd", "..%2f..%2fetc/passwd", str(pile), "-1", "99999", "1/../2"):
        for route in ("/thumb/", "/image/", "/api/look/", "/api/export/"):
            assert server.request("GET", route + name).status in (404, 422)
    for name in ("../../x.png", "/etc/x.png", ".."):
        server.request("POST", f"/api/upload?name={name}", b"not an image")
    project = server.temp.parent / "project"
    outside = [file for file in project.parent.rglob("x.png") if not file.is_relative_to(project)]
    assert outside == []


def test_a_killed_server_loses_no_label_and_goes_on(pile, tmp_path):
    first = started(tmp_path, pile, "--out", tmp_path / "project", command="studio")
    server = first.__enter__()
    ready(server)
    name_classes(server)
    done = label(server, 7)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    server.process.stdout.close()
    first.log.close()
    assert set(Project.open(tmp_path / "project").labels) == set(done)
    (tmp_path / "again").mkdir()
    with started(tmp_path / "again", tmp_path / "project", command="studio") as other:
        assert ready(other)["labelled"] == 7
        assert set(label(other, 3)).isdisjoint(done)

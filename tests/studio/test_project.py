from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from ogkd.data.grouping import Grouping
from ogkd.data.read import read_dataset
from ogkd.errors import ConfigError, DataError, OgkdError
from ogkd.files import write_json
from ogkd.serve.studio import project as module
from ogkd.serve.studio.project import ClassInfo, Conflict, Project
from tiny_data import write_image
from tiny_images import volume


@pytest.fixture
def project(tmp_path):
    opened = Project.open(tmp_path / "p")
    opened.set_facts(classes=[ClassInfo(name="benign"), ClassInfo(name="malignant")])
    return opened


def again(project):
    return Project.open(project.folder)


def test_what_was_said_is_there_when_it_is_opened_again(project):
    project.mark("../a.png", "label", "benign", by="me")
    project.mark("../b.png", "unsure")
    project.mark("../a.png", "label", "malignant")
    reopened = again(project)
    assert reopened.labels == {"../a.png": "malignant"}
    assert reopened.marks == project.marks
    assert reopened.history == project.history
    assert reopened.class_names == ("benign", "malignant")


def test_a_click_is_on_the_disk_before_it_is_acknowledged(project, monkeypatch):
    synced = []
    inner = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: (synced.append(os.fstat(handle)), inner(handle))
    )
    project.mark("a.png", "label", "benign")
    log = project.folder / module.LOG
    assert [facts.st_ino for facts in synced] == [log.stat().st_ino]
    assert synced[0].st_size == log.stat().st_size


KILLED = """
import sys
from ogkd.serve.studio.project import Project
project = Project.open(sys.argv[1])
for number in range(100000):
    project.mark(f"{number}.png", "label", "benign")
    print(number, flush=True)
"""


@pytest.mark.slow
def test_kill_9_loses_no_acknowledged_click(project):
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(project.folder)], stdout=subprocess.PIPE, text=True
    )
    lines = [child.stdout.readline() for _ in range(40)]
    child.send_signal(signal.SIGKILL)
    lines += child.stdout.readlines()
    child.wait()
    child.stdout.close()
    acknowledged = {f"{int(line)}.png" for line in lines if line.endswith("\n")}
    assert len(acknowledged) >= 40
    assert acknowledged <= set(again(project).labels)


@pytest.mark.parametrize("cut", [1, 20, 59])
def test_a_line_that_a_kill_has_cut_is_dropped_and_the_next_one_is_whole(project, cut):
    project.mark("a.png", "label", "benign")
    project.mark("b.png", "label", "malignant")
    log = project.folder / module.LOG
    log.write_bytes(log.read_bytes()[:-cut])
    reopened = again(project)
    assert reopened.labels == {"a.png": "benign"}
    reopened.mark("c.png", "label", "benign")
    assert again(project).labels == {"a.png": "benign", "c.png": "benign"}
    log.write_bytes(b"{nonsense\n" + log.read_bytes())
    with pytest.raises(DataError, match="line 1 is damaged"):
        again(project)


def test_two_browsers_do_not_overwrite_each_other(project):
    first = project.mark("a.png", "label", "benign", by="one", seen=0)
    with pytest.raises(Conflict) as conflict:
        project.mark("a.png", "label", "malignant", by="two", seen=0)
    assert conflict.value.mark == first
    assert project.labels == {"a.png": "benign"}
    # Those that agree are not bothered.
    assert project.mark("a.png", "label", "benign", by="two", seen=0) == first
    project.mark("a.png", "label", "malignant", by="two", seen=first.number)  # now it knows
    assert project.labels == {"a.png": "malignant"}
    with pytest.raises(Conflict):
        project.undo("one")


def test_many_clicks_at_once_are_all_kept(project):
    def clicks(who):
        for number in range(20):
            project.mark(f"{who}-{number}.png", "label", "benign", by=who)

    threads = [threading.Thread(target=clicks, args=(f"w{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(again(project).labels) == 120
    assert [mark.number for mark in again(project).history] == list(range(1, 121))


def test_undo_goes_back_step_by_step_and_only_through_ones_own_clicks(project):
    project.mark("a.png", "label", "benign", by="me")
    project.mark("b.png", "label", "benign", by="other")
    project.mark("a.png", "label", "malignant", by="me")
    assert project.undo("me").label == "benign"
    assert project.labels == {"b.png": "benign", "a.png": "benign"}
    assert project.undo("me").state == "clear"
    assert project.undo("me") is None
    assert again(project).labels == {"b.png": "benign"}
    assert len(project.history) == 5  # nothing is ever removed from the log
    project.mark("c.png", "label", "malignant", by="me")
    assert (project.undo("me").image, project.undo("me")) == ("c.png", None)


def test_classes_change_names_and_keep_their_labels(project):
    project.mark("a.png", "label", "benign")
    project.mark("b.png", "label", "malignant")
    renames = {"benign": "malignant", "malignant": "carcinoma"}
    project.set_classes([ClassInfo(name="malignant"), ClassInfo(name="carcinoma")], renames)
    for opened in (project, again(project)):
        assert opened.class_names == ("malignant", "carcinoma")
        assert opened.labels == {"a.png": "malignant", "b.png": "carcinoma"}


def test_a_kill_within_a_rename_loses_no_label(project, monkeypatch):
    project.mark("a.png", "label", "benign")

    def killed(*_, **__):
        raise KeyboardInterrupt

    names = [ClassInfo(name="benign mass"), ClassInfo(name="malignant")]
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            project.set_classes(names, {"benign": "benign mass"})
    reopened = again(project)
    assert reopened.labels == {"a.png": "benign mass"}
    assert reopened.class_names == ("benign", "malignant", "benign mass")


@pytest.mark.parametrize(
    ("classes", "renames"),
    [
        (["cyst", "malignant"], {"benign": "benign mass"}),  # labelled, and gone
        (["benign mass", "Malignant", "malignant"], {"benign": "benign mass"}),
        (["benign mass", "malignant"], {"benign": "benign mass", "absent": "other"}),
        (["malignant", "malignant 2"], {"benign": "malignant"}),
    ],
)
def test_classes_that_cannot_be_set_rename_nothing(project, classes, renames):
    project.mark("a.png", "label", "benign")
    with pytest.raises(OgkdError):
        project.set_classes([ClassInfo(name=name) for name in classes], renames)
    for opened in (project, again(project)):
        assert opened.class_names == ("benign", "malignant")
        assert opened.labels == {"a.png": "benign"}


def test_a_class_that_is_not_there_is_refused(project):
    for label in ("other", None):
        with pytest.raises(ConfigError):
            project.mark("a.png", "label", label)
    assert not (project.folder / module.LOG).exists()


def test_the_table_is_a_dataset_that_fit_reads(project, tmp_path):
    for name, label in (("a", "benign"), ("b", "malignant")):
        image = write_image(tmp_path / "images" / f"{name}.png")
        project.mark(f"../images/{image.name}", "label", label)
    project.mark("../images/c.png", "unusable")
    project.set_facts(patient=r"([^/]+)\.png")
    cases = read_dataset(project.write_table()).cases
    assert [(case.image.file.name, case.target, case.group) for case in cases] == [
        ("a.png", 0, "a"),
        ("b.png", 1, "b"),
    ]
    assert all(case.image.file.is_file() for case in cases)


def test_labels_of_slices_are_also_labels_of_their_volumes(project, tmp_path):
    (tmp_path / "scans").mkdir()
    for name, label in (("a", "benign"), ("b", "malignant")):
        volume(tmp_path / "scans" / f"{name}.nii.gz")
        project.mark(f"../scans/{name}.nii.gz#axis=2,index=middle", "label", label)
    parts = [case.image.part for case in read_dataset(project.write_table()).cases]
    assert parts == ["axis=2,index=middle"] * 2
    volumes = read_dataset(project.folder / module.VOLUMES)
    cases = Grouping.parse(slices="every=4").apply(volumes).cases
    assert [(len(case.images), case.target) for case in cases] == [(4, 0), (4, 1)]


def test_a_folder_of_something_else_is_never_taken(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not a studio project"):
        Project.open(tmp_path / "x")


@pytest.mark.parametrize("schema", [module.SCHEMA - 1, module.SCHEMA + 1])
def test_a_project_of_another_schema_is_refused(project, schema):
    path = project.folder / module.SETTINGS
    content = json.loads(path.read_text())
    write_json(path, {**content, "schema_version": schema}, ours=True)
    with pytest.raises(ConfigError):
        again(project)

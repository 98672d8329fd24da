"""`ogkd doctor`: each check passes, warns or fails with a fix."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import psutil
import pytest

import ogkd.cli.doctor as doctor
from ogkd.backbones import loading
from ogkd.backbones.catalog import catalog
from ogkd.errors import BackboneError
from stub_server import serve
from tiny_backbones import make_clip

PASS = ("PASS", "Python", "3.11", "")
WARN = ("WARN", "Model hub", "does not answer", "use a network")
FAIL = ("FAIL", "Cache", "cannot be written", "set OGKD_CACHE")


@pytest.fixture
def tiny_builtin(bert_backbone, monkeypatch):
    monkeypatch.setattr(loading, "load_builtin", lambda **_: bert_backbone)


def statuses():
    return {subject: status for status, subject, _, _ in doctor.examine()}


@pytest.mark.parametrize(("rows", "code"), [([PASS, WARN], 0), ([FAIL, WARN, PASS], 2)])
def test_each_check_is_a_line_with_its_fix(ogkd, monkeypatch, rows, code):
    monkeypatch.setattr(doctor, "examine", lambda: iter(rows))
    outcome = ogkd("doctor")
    assert outcome.code == code
    for status, subject, result, fix in rows:
        assert f"{status:5}{subject}: {result}\n" in outcome.out
        assert f"fix: {fix}" in outcome.out


def test_check_that_raises_has_failed_and_others_go_on(tiny_builtin, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: 1 / 0)
    found = statuses()
    assert [subject for subject, status in found.items() if status == "FAIL"] == ["Memory"]
    assert len(found) == len(doctor._CHECKS)


def test_cache_that_cannot_be_written_fails(tiny_builtin, tmp_path, monkeypatch):
    monkeypatch.setenv("OGKD_CACHE", str(tmp_path / "not" / "yet"))
    assert statuses()["Cache"] != "FAIL"
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("OGKD_CACHE", str(tmp_path / "file" / "sub"))
    assert statuses()["Cache"] == "FAIL"


def test_hub_is_asked_unless_offline(monkeypatch):
    assert not doctor._hub()[0]  # the tests are offline
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serve() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        assert doctor._hub()[0]  # with a 404, which is an answer
    assert not doctor._hub()[0]


def test_present_backbones_are_named(tiny_builtin, monkeypatch):
    assert doctor._backbones() == (False, "builtin; for images: none")
    folder = catalog()["biomedclip"].folder
    make_clip(folder)
    (folder / "source.json").write_text('{"files": {"a": 1}, "weights": {"file": "a"}}')
    assert doctor._backbones() == (True, "builtin, biomedclip; for images: biomedclip")

    def broken(**_):
        raise BackboneError("damaged")

    monkeypatch.setattr(loading, "load_builtin", broken)
    assert statuses()["Backbones"] == "FAIL"


def test_absent_extras_are_named(monkeypatch):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(doctor._EXTRAS) == set(project["optional-dependencies"]) - {"dev", "docs"}
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "pydicom" else sys)
    assert doctor._extras() == (False, "not installed: dicom")

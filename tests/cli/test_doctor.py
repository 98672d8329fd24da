from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import psutil
import pytest

import ogkd.cli.doctor as doctor
from ogkd.backbones import engines, loading
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


@pytest.fixture(autouse=True)
def _forget_probes():
    engines.half_problem.cache_clear()
    yield
    engines.half_problem.cache_clear()


@pytest.mark.parametrize(("rows", "code"), [([PASS, WARN], 0), ([FAIL, WARN, PASS], 2)])
def test_each_check_is_a_line_with_its_fix(ogkd, monkeypatch, rows, code):
    monkeypatch.setattr(doctor, "examine", lambda: iter(rows))
    outcome = ogkd("doctor")
    assert outcome.code == code
    for status, subject, result, fix in rows:
        assert f"{status:5}{subject}: {result}\n" in outcome.out
        assert f"fix: {fix}" in outcome.out


def test_this_machine_can_be_examined(ogkd, tiny_builtin, monkeypatch):
    monkeypatch.setattr(engines, "_PROBE", "pass")
    outcome = ogkd("doctor")
    assert outcome.code == 0, outcome.out
    rows = list(doctor.examine())
    assert all(result and (fix or status == "PASS") for status, _, result, fix in rows)
    assert {subject for _, subject, _, _ in rows} == set(doctor._CHECKS)


def test_a_check_that_crashes_has_failed_and_the_others_go_on(tiny_builtin, monkeypatch):
    monkeypatch.setattr(engines, "_PROBE", "pass")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: 1 / 0)
    rows = list(doctor.examine())
    assert [subject for status, subject, _, _ in rows if status == "FAIL"] == ["Memory"]
    assert len(rows) == len(doctor._CHECKS)


@pytest.mark.parametrize(
    ("probe", "status", "words"),
    [
        ("pass", "PASS", "works"),
        ("raise SystemExit(3)", "WARN", "exit code 3"),
        pytest.param(
            f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})",
            "WARN",
            "killed by signal",
            marks=pytest.mark.skipif(os.name == "nt", reason="signals are not Windows's"),
        ),
    ],
)
def test_bf16_is_judged_by_how_a_child_process_ends(monkeypatch, probe, status, words):
    monkeypatch.setattr(engines, "_PROBE", probe)
    outcome = doctor._bf16()
    assert outcome[0] == status
    assert words in outcome[1]


def test_a_bf16_probe_that_never_ends_is_a_warning(monkeypatch):
    def stuck(*arguments, **options):
        raise subprocess.TimeoutExpired("python", 120)

    monkeypatch.setattr(engines.subprocess, "run", stuck)
    assert doctor._bf16()[0] == "WARN"


@pytest.mark.slow
def test_the_bf16_probe_runs_here_or_is_a_warning():
    status, result, _ = doctor._bf16()
    assert status == "PASS" or "signal" in result  # else the probe itself is wrong


def test_missing_and_outdated_packages_fail_by_name(monkeypatch):
    assert doctor._packages()[0] == "PASS"
    assert "uvicorn" not in doctor._packages()[1]  # extras are not required
    real = metadata.version

    def fake(name):
        if name == "numpy":
            raise metadata.PackageNotFoundError(name)
        return "0.1" if name == "torch" else real(name)

    monkeypatch.setattr(metadata, "version", fake)
    status, result, _ = doctor._packages()
    assert status == "FAIL"
    assert "numpy is missing" in result
    assert "torch 0.1 is not >=" in result
    assert "transformers" not in result


def test_little_memory_or_disk_is_a_warning(monkeypatch):
    memory = SimpleNamespace(available=2**20, total=2**33)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    assert doctor._memory()[0] == doctor._cache()[0] == "WARN"


def test_a_cache_that_cannot_be_written_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("OGKD_CACHE", str(tmp_path / "not" / "yet"))
    assert doctor._cache()[0] != "FAIL"
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("OGKD_CACHE", str(tmp_path / "file" / "sub"))
    status, _, fix = doctor._cache()
    assert status == "FAIL"
    assert "OGKD_CACHE" in fix


def test_a_hub_is_asked_unless_offline(monkeypatch):
    assert doctor._hub()[0] == "WARN"  # the tests are offline
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serve() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        assert doctor._hub()[0] == "PASS"  # with a 404, which is an answer
    assert doctor._hub()[0] == "WARN"


def test_backbones_that_are_here_are_named(tiny_builtin, monkeypatch):
    status, result, fix = doctor._backbones()
    assert (status, result) == ("WARN", "builtin; for real images: none")
    assert "fetch biomedclip" in fix
    folder = catalog()["biomedclip"].folder
    make_clip(folder)
    (folder / "source.json").write_text('{"files": {"a": 1}, "weights": {"file": "a"}}')
    assert doctor._backbones()[:2] == ("PASS", "builtin, biomedclip; for real images: biomedclip")

    def broken(**_):
        raise BackboneError("damaged")

    monkeypatch.setattr(loading, "load_builtin", broken)
    assert doctor._backbones()[:2] == ("FAIL", "damaged")


def test_every_extra_is_looked_for(monkeypatch):
    offered = set(metadata.metadata("ogkd").get_all("Provides-Extra") or ()) - {"dev", "docs"}
    assert set(doctor._EXTRAS) == offered
    monkeypatch.setattr(doctor, "find_spec", lambda name: sys if name == "pydicom" else None)
    assert doctor._extra("dicom")[0] == "PASS"
    assert doctor._extra("serve")[::2] == ("WARN", 'pip install "ogkd[serve]"')

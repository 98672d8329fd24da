from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading
from importlib import metadata
from types import SimpleNamespace

import psutil
import pytest
from huggingface_hub import constants

import ogkd.cli.doctor as doctor
from ogkd.backbones import engines, loading
from ogkd.backbones.catalog import catalog
from ogkd.errors import BackboneError
from tiny_backbones import make_clip


@pytest.fixture
def tiny_builtin(bert_backbone, monkeypatch):
    monkeypatch.setattr(loading, "load_builtin", lambda **_: bert_backbone)


def only(findings):
    (finding,) = findings
    return finding


def test_every_check_reports_and_every_trouble_has_a_fix(tiny_builtin, monkeypatch):
    monkeypatch.setattr(engines, "_PROBE", "pass")
    found = list(doctor.examine())
    names = {finding.what for finding in found}
    assert {
        *("Python", "Packages", "Device", "Threads", "bf16", "Memory", "Cache", "Disk"),
        *("Model hub", "Backbones", "Extra dicom", "Extra ray"),
    } <= names
    assert all(finding.found for finding in found)
    assert all(finding.fix for finding in found if finding.status != "PASS")
    assert not any("check itself failed" in finding.found for finding in found)


def test_a_check_that_breaks_is_a_finding_and_the_others_go_on(tiny_builtin, monkeypatch):
    monkeypatch.setattr(engines, "_PROBE", "pass")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: 1 / 0)
    found = list(doctor.examine())
    broken = [finding for finding in found if finding.status == "FAIL"]
    assert [finding.what for finding in broken] == ["memory"]
    assert "ZeroDivisionError" in broken[0].found
    assert found[-1].what.startswith("Extra")


@pytest.fixture(autouse=True)
def _forget_probes():
    yield engines.half_problem.cache_clear()
    engines.half_problem.cache_clear()


def test_the_bf16_probe_runs_here_or_is_a_warning():
    finding = only(doctor._bf16())
    assert finding.status == "PASS" or "signal" in finding.found  # else the probe itself is wrong


@pytest.mark.skipif(os.name == "nt", reason="signals are not Windows's")
def test_a_bf16_product_that_kills_its_process_is_a_warning(monkeypatch):
    monkeypatch.setattr(engines, "_PROBE", f"import os; os.kill(os.getpid(), {signal.SIGILL})")
    finding = only(doctor._bf16())
    assert finding.status == "WARN"
    assert f"killed by signal {int(signal.SIGILL)}" in finding.found
    assert "float32" in finding.fix


@pytest.mark.parametrize(("probe", "status"), [("raise SystemExit(3)", "WARN"), ("pass", "PASS")])
def test_the_bf16_probe_is_judged_by_its_exit_code(monkeypatch, probe, status):
    monkeypatch.setattr(engines, "_PROBE", probe)
    finding = only(doctor._bf16())
    assert finding.status == status
    assert status == "PASS" or "exit code 3" in finding.found


def test_a_bf16_probe_that_never_ends_is_a_warning(monkeypatch):
    def stuck(*arguments, **options):
        raise subprocess.TimeoutExpired("python", 120)

    monkeypatch.setattr(engines.subprocess, "run", stuck)
    assert "no answer" in only(doctor._bf16()).found


def test_missing_and_outdated_packages_fail_by_name(monkeypatch):
    real = metadata.version

    def fake(name):
        if name == "numpy":
            raise metadata.PackageNotFoundError(name)
        return "0.1" if name == "torch" else real(name)

    monkeypatch.setattr(metadata, "version", fake)
    finding = only(doctor._packages())
    assert finding.status == "FAIL"
    assert "numpy is missing" in finding.found
    assert "torch 0.1 is not >=" in finding.found
    assert "transformers" not in finding.found


def test_installed_packages_pass_and_extras_are_not_asked_for():
    finding = only(doctor._packages())
    assert finding.status == "PASS", finding
    assert "torch " in finding.found
    assert "uvicorn" not in finding.found


def test_an_old_python_fails(monkeypatch):
    monkeypatch.setattr(doctor, "sys", SimpleNamespace(version_info=(3, 10)))
    assert only(doctor._python()).status == "FAIL"


def test_little_memory_is_a_warning(monkeypatch):
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: SimpleNamespace(available=2**20, total=2**33)
    )
    assert only(doctor._memory()).status == "WARN"


def test_the_cache_is_measured_and_need_not_exist_yet(tmp_path, monkeypatch):
    monkeypatch.setenv("OGKD_CACHE", str(tmp_path / "not" / "yet"))
    cache, disk = doctor._cache()
    assert (cache.status, disk.what) == ("PASS", "Disk")
    assert "0.00 GiB" in cache.found
    assert not (tmp_path / "not").exists()
    (tmp_path / "big").mkdir()
    with (tmp_path / "big" / "file").open("wb") as file:
        file.truncate(3 * 2**30)  # takes no room on the disk
    monkeypatch.setenv("OGKD_CACHE", str(tmp_path))
    assert "contains 3.00 GiB" in next(doctor._cache()).found


def test_a_cache_that_cannot_be_written_fails(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "file" / "sub"):
        monkeypatch.setenv("OGKD_CACHE", str(place))
        finding = only(doctor._cache())
        assert finding.status == "FAIL"
        assert "OGKD_CACHE" in finding.fix

    def refuse(**options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setenv("OGKD_CACHE", str(tmp_path))
    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    assert "Permission denied" in only(doctor._cache()).found


def test_a_full_disk_is_a_warning(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    _, disk = doctor._cache()
    assert (disk.what, disk.status) == ("Disk", "WARN")


@pytest.fixture
def own_hub(monkeypatch):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(self.server.status)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    server.status = 200
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("status", [200, 403])
def test_a_hub_that_answers_passes(own_hub, status):
    own_hub.status = status
    finding = only(doctor._hub())
    assert finding.status == "PASS"
    assert f"127.0.0.1:{own_hub.server_port} answers" in finding.found


def test_a_hub_that_does_not_answer_is_a_warning(own_hub):
    own_hub.server_close()
    finding = only(doctor._hub())
    assert finding.status == "WARN"
    assert "fetch" in finding.fix


def test_offline_is_a_warning_and_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(
        "urllib.request.urlopen", lambda *a, **k: pytest.fail("the network was used")
    )
    finding = only(doctor._hub())
    assert finding.status == "WARN"
    assert "HF_HUB_OFFLINE" in finding.found


def test_a_damaged_builtin_model_fails_with_its_own_message(monkeypatch):
    def broken(**_):
        raise BackboneError("The built-in model is not complete.")

    monkeypatch.setattr(loading, "load_builtin", broken)
    finding = only(doctor._backbones())
    assert (finding.status, finding.found) == ("FAIL", "The built-in model is not complete.")


def test_backbones_that_are_here_are_named(tiny_builtin):
    missing = only(doctor._backbones())
    assert missing.status == "WARN"
    assert "fetch biomedclip" in missing.fix
    assert "for real images none: a backbone must be named" in missing.found
    folder = catalog()["biomedclip"].folder
    make_clip(folder)
    (folder / "source.json").write_text('{"files": {"a": 1}, "weights": {"file": "a"}}')
    here = only(doctor._backbones())
    assert here.status == "PASS"
    assert here.found.startswith("builtin, biomedclip (for real images biomedclip is used")


def test_extras_are_told_apart(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: sys if name == "pydicom" else None)
    found = {finding.what: finding for finding in doctor._extras()}
    assert found["Extra dicom"].status == "PASS"
    offered = set(metadata.metadata("ogkd").get_all("Provides-Extra") or ()) - {"dev", "docs"}
    assert {what.removeprefix("Extra ") for what in found} == offered
    assert found["Extra serve"].status == "WARN"
    assert found["Extra serve"].fix == 'pip install "ogkd[serve]"'

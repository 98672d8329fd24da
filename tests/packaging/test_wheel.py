"""The wheel has everything: it is built, unpacked into an empty folder, and used from there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = (".toml", ".csv", ".html", ".css", ".json", ".safetensors", ".md", ".typed")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a clean copy of the sources: what git would give, and no build leftovers."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout: which files belong to the sources is not known")
    wanted = ("src/", "pyproject.toml", "README.md", "LICENSE")
    for name in filter(None, listed.stdout.decode().split("\0")):
        if name.startswith(wanted) and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    command = [*pip, "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", out, copy]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = out.glob("ogkd-*.whl")
    return file, copy


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with the wheel in it and nothing else."""
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    command = [*pip, "--no-deps", "--no-index", "--target", target, wheel[0]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def run(installed, folder, line, *, module="ogkd"):
    """Run the installed wheel, from elsewhere, and return what it prints."""
    environment = os.environ | {"PYTHONPATH": str(installed), "OGKD_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", module, *shlex.split(line)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_contains_every_file_of_the_package(wheel):
    file, copy = wheel
    inside = {name for name in zipfile.ZipFile(file).namelist() if name.startswith("ogkd/")}
    source = {
        path.relative_to(copy / "src").as_posix()
        for path in (copy / "src" / "ogkd").rglob("*")
        if path.is_file()
    }
    assert inside == source
    for suffix in DATA:
        assert any(name.endswith(suffix) for name in inside), suffix


def test_the_wheel_has_the_licence_and_the_command(wheel):
    names = zipfile.ZipFile(wheel[0]).namelist()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
    text = zipfile.ZipFile(wheel[0]).read(entry_points).decode()
    assert "ogkd = ogkd.__main__:main" in text


def test_version_methods_and_catalogues_are_read_from_the_wheel(installed, tmp_path):
    assert str(installed) in run(installed, tmp_path, "--details ogkd", module="inspect")
    assert re.fullmatch(r"ogkd \d+\.\d+\.\d+", run(installed, tmp_path, "--version").strip())
    assert "biomedcoop" in run(installed, tmp_path, "methods")
    assert "btmri" in run(installed, tmp_path, "data list")
    assert "paper/few-shot" in run(installed, tmp_path, "bench list")
    assert "biomedclip" in run(installed, tmp_path, "backbones list")


def test_a_model_is_fitted_and_reported_from_the_wheel(installed, tmp_path):
    run(installed, tmp_path, "phantoms endoscopy --out d --train 4 --val 0 --test 2")
    run(installed, tmp_path, "fit d --method fused --out m --shots 2")
    run(installed, tmp_path, "evaluate m d --split test --report r.html --resamples 20")
    assert (tmp_path / "r.html").stat().st_size > 50_000
    run(installed, tmp_path, "prompts check busi")

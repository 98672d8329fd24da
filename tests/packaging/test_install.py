"""The pins agree with each other, and the container file with what is there."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as plain

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(file):
    """The exact version of each package in a file of pins."""
    pairs = re.findall(r"(?m)^([\w.-]+)==([^\s;]+)", (ROOT / file).read_text())
    return {plain(name): version for name, version in pairs}


def needed():
    for extra in ("dicom", "serve", "onnx", "audit", "bench", "excel"):
        yield from PROJECT["optional-dependencies"][extra]
    yield from PROJECT["dependencies"]


def test_lock_has_every_package_of_users_except_torch():
    names = {plain(Requirement(line).name) for line in needed()}
    assert names - set(pins("requirements.lock")) == {"torch"}


def test_lock_and_constraints_name_the_same_versions():
    locked, tested = pins("requirements.lock"), pins("constraints.txt")
    both = locked.keys() & tested.keys()
    assert len(both) > 70
    assert {name: locked[name] for name in both} == {name: tested[name] for name in both}


def test_pins_satisfy_the_declared_ranges():
    tested = pins("constraints.txt")
    for line in needed():
        requirement = Requirement(line)
        assert requirement.specifier.contains(tested[plain(requirement.name)]), line


def test_every_locked_package_has_a_hash_and_no_address():
    text = (ROOT / "requirements.lock").read_text()
    blocks = re.split(r"(?m)^(?=\S)", text)[1:]
    assert len(blocks) == len(pins("requirements.lock"))
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in text


@pytest.mark.parametrize("file", ["Dockerfile", "docs/get-started/install.md"])
def test_named_torch_is_the_tested_one(file):
    named = set(re.findall(r"torch==([\d.]+)", (ROOT / file).read_text()))
    assert named == {pins("constraints.txt")["torch"]}


def test_container_copies_only_what_exists_and_is_let_in():
    let_in = re.findall(r"(?m)^!(.+)$", (ROOT / ".dockerignore").read_text())
    copied = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text())
    for name in " ".join(copied).split():
        assert name in let_in
        assert (ROOT / name).exists()


def test_container_does_not_run_as_root():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert lines.index("USER ogkd") < lines.index('ENTRYPOINT ["ogkd"]')


def test_container_asks_whether_the_page_is_healthy():
    text = (ROOT / "Dockerfile").read_text()
    command = json.loads(re.search(r"(?m)^HEALTHCHECK .*?CMD (.+)$", text)[1])
    compile(command[2], "HEALTHCHECK", "exec")
    assert "'127.0.0.1', 7860" in command[2]
    assert "OGKD_ACCESS_LOG=1" in text

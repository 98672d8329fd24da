"""Nothing that ogkd writes says on which machine, in which folder or by whom it was written."""

from __future__ import annotations

import getpass
import io
import platform
import socket
import sys
import zipfile

import pytest

from ogkd.cli import main
from ogkd.data.phantoms import write_folder
from ogkd.images import ImageRef
from ogkd.serve.studio.exports import hand_over
from ogkd.serve.studio.project import ClassInfo, Project
from ogkd.serve.studio.session import Session
from tiny_backbones import make_clip

pytestmark = pytest.mark.slow
USER, HOST = "quillfeather", "gloomhaven"
# {home} is a folder whose name is the user's. Tables of images name them as the command does.
COMMANDS = (
    "fit {home}/img -b {home}/clip --out {home}/out/model",
    "calibrate {home}/out/model {home}/img",
    "fit {home}/img -b builtin -m ogkd --set train.epochs=1 --out {home}/out/trained",
    "evaluate {home}/out/model {home}/img --resamples 0 --out {home}/out/e.json",
    "evaluate {home}/out/model {home}/img --resamples 0 --report {home}/out/r.html",
    "predict out/model img/test --out {home}/out/p.csv",
    "predict out/model img/test --out {home}/out/p.xlsx",
    "predict out/model img/test --format jsonl --out {home}/out/p.jsonl",
    "embed img/test -b {home}/clip --out {home}/out/e.safetensors",
    "export {home}/out/trained --onnx {home}/out/m.onnx",
    "data check {home}/img --json {home}/out/c.json --html {home}/out/c.html",
    "data split {home}/img/train --out {home}/out/split.csv",
    "start {home}/img --yes -b {home}/clip --out {home}/out/start",
    "bench run {home}/grid.toml --workers 0 --out {home}/out/runs",
    "bench figure {home}/out/runs --out {home}/out/figures",
)
GRID = """
name = "small"
data = "phantoms"
backbone = "{home}/clip"
datasets = ["us-breast"]
shots = [1]
seeds = [1]
methods = ["gda"]
phantoms = {{ train = 1, val = 1, test = 1 }}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A user's folder in which every command was run."""
    folder = tmp_path_factory.mktemp("users") / USER
    folder.mkdir()
    make_clip(folder / "clip")
    write_folder("us-breast", folder / "img", splits={"train": 3, "val": 16, "test": 3}, size=128)
    (folder / "grid.toml").write_text(GRID.format(home=folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("OGKD_CACHE", str(folder / "cache"))
        for name in ("USER", "LOGNAME", "USERNAME"):
            patch.setenv(name, USER)
        patch.setenv("HOSTNAME", HOST)
        patch.setattr(getpass, "getuser", lambda: USER)
        patch.setattr(socket, "gethostname", lambda: HOST)
        patch.setattr(platform, "node", lambda: HOST)
        for line in COMMANDS:
            patch.setattr(sys, "argv", ["ogkd", *line.format(home=folder).split()])
            with pytest.raises(SystemExit) as end:
                main()
            assert not end.value.code, line
        _teach(folder)
        yield folder


def _teach(folder):
    """A studio whose owner has labelled some images and taken everything along."""
    project = Project.open(folder / "out" / "studio")
    project.add_folder(folder / "img")
    names = ("normal breast tissue", "simple cyst")
    project.set_facts(classes=[ClassInfo(name=name) for name in names])
    project.use_backbone(str(folder / "clip"))
    session = Session(project)
    session.encoding.result()
    for name in names:
        for ref in (folder / "img" / "val" / name.replace(" ", "_")).glob("*.png"):
            project.mark(project.address(ImageRef(ref)), "label", name, by="window")
    session.changed()
    session.settle()
    (folder / "out" / "studio.zip").write_bytes(hand_over(session, folder))
    session.close()


def texts_of(path, content):
    """The content of a file, of what an archive contains, and of what its compression hides."""
    yield str(path), content
    if zipfile.is_zipfile(io.BytesIO(content)):
        archive = zipfile.ZipFile(io.BytesIO(content))
        for name in archive.namelist():
            yield from texts_of(f"{path}!{name}", archive.read(name))


def test_no_artefact_tells_a_path_a_user_or_a_host(home):
    files = [path for path in (home / "out").rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {
        "model.json",
        "README.md",
        "calibration.json",
        "m.onnx",
        "start.json",
        "e.json",
    } <= names
    assert {"e.safetensors", "p.xlsx", "result.json", "project.json", "studio.zip"} <= names
    forbidden = [word.encode() for word in (USER, HOST, str(home.parent), str(home.parents[1]))]
    telling = {
        f"{name}: {content[max(0, at - 80) : at + 120]!r}"
        for path in files
        for name, content in texts_of(path.relative_to(home), path.read_bytes())
        for word in forbidden
        if (at := content.find(word)) >= 0
    }
    assert not telling, "\n".join(sorted(telling))

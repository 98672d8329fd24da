"""The whole command over its own socket, as a browser or a program meets it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from web_client import launch

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "app.md"


def test_equal_images_at_the_same_time_are_all_answered_and_none_is_kept(server, cyst):
    content = cyst.read_bytes()
    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(lambda _: server.classify(content).json(), range(12)))
    assert all(answer == replies[0] for answer in replies)
    assert server.waiting() == []
    [private] = (server.folder / "temp").glob("ogkd-app-*")
    assert private.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.name != "posix", reason="a process can be asked only there")
def test_uploads_of_a_killed_server_are_removed_and_no_others(tmp_path, monkeypatch):
    from ogkd.serve.server import remove_orphans

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = tmp_path / f"ogkd-app-{gone.pid}-x"
    outside = tmp_path / "patients"
    others = [tmp_path / f"ogkd-app-{os.getpid()}-x", tmp_path / "ogkd-app-x-y", outside]
    for folder in (left, *others):
        folder.mkdir()
        (folder / "image.png").touch()
    (tmp_path / f"ogkd-app-{gone.pid}-link").symlink_to(outside)
    remove_orphans()
    assert not left.exists()
    assert all((folder / "image.png").exists() for folder in others)


def test_a_name_is_a_name_and_never_a_path_or_an_address(server, folders, cyst):
    content = cyst.read_bytes()
    for name in ("/etc/passwd", "../../x.png", "http://127.0.0.1/a.png", "a" * 500, "", "<b>"):
        answer = server.classify(content, name=name).json()
        assert "/" not in answer["image"]["name"]
        assert len(answer["image"]["name"]) <= 255
        assert answer["models"][0]["prediction"] == "simple cyst"
    for body in (b"http://8.8.8.8/a.png", b'{"path": "/etc/passwd"}', b"file:///etc/passwd"):
        assert server.classify(body).status_code == 422
    assert server.waiting() == []
    assert not (server.folder / "calls.txt").exists()
    for path in ("/", "/model", "/health", "/openapi.json"):
        page = server.get(path).text
        assert str(server.folder) not in page
        assert str(folders) not in page


def test_every_answer_is_what_the_openapi_description_says(server, cyst, fits):
    spec = server.get("/openapi.json").json()
    assert set(spec["paths"]) == {"/predict", "/model", "/health"}

    def schema(path, method, status):
        reply = spec["paths"][path][method]["responses"][str(status)]
        if "$ref" in reply:
            reply = spec["components"]["responses"][reply["$ref"].rsplit("/", 1)[1]]
        return reply["content"]["application/json"]["schema"]

    content = cyst.read_bytes()
    for images in ("", "true"):
        body = server.classify(content, images=images).json()
        assert fits(schema("/predict", "post", 200), body), body
    assert not fits(schema("/predict", "post", 200), {**body, "more": 1})
    for path in ("/model", "/health"):
        assert fits(schema(path, "get", 200), server.get(path).json())
    for refused in map(server.classify, (b"", b"x", bytes(3_000_000))):
        assert fits(schema("/predict", "post", refused.status_code), refused.json())


@pytest.mark.parametrize("command", [["bash", "-euc"], [sys.executable, "-c"]], ids=str)
def test_the_examples_of_the_docs_work(server, cyst, tmp_path, command):
    language, word = ("sh", "curl") if command[0] == "bash" else ("python", "/predict")
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [text for text in blocks if word in text]
    script = example.replace("http://127.0.0.1:7860", server.address)
    (tmp_path / "scan.png").write_bytes(cyst.read_bytes())
    done = subprocess.run(
        [*command, script], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "simple cyst" in done.stdout


def test_sigterm_ends_the_server_once_every_accepted_request_is_answered(folders, tmp_path):
    large = tmp_path / "large.png"  # so that all answers take seconds
    Image.linear_gradient("L").resize((2400, 1800)).save(large)
    content = large.read_bytes()
    with launch(tmp_path / "server", folders / "gda") as server, ThreadPoolExecutor(40) as pool:
        server.classify(content)
        waiting = {pool.submit(server.classify, content, images="true") for _ in range(40)}
        answered: set[Any] = set()
        while len(answered) < 10:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            answered |= done
        server.process.terminate()
        answered |= waiting
        assert [job.result().status_code for job in answered] == [200] * 40
        last, _ = server.process.communicate(timeout=60)
        assert (server.process.returncode, last.startswith("Stopped; ")) == (0, True)
        assert list((server.folder / "temp").glob("ogkd-app-*")) == []

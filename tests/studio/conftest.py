"""A pile of phantoms without labels, and a studio of it in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ogkd.data.phantoms import write_folder
from tiny_data import write_image

CLASSES = ["benign solid mass", "malignant mass", "normal breast tissue", "simple cyst"]


@pytest.fixture(scope="session")
def pile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 phantoms of four classes, a copy of one, an image of noise, and a file that is none."""
    drawn = write_folder(
        "us-breast", tmp_path_factory.mktemp("drawn") / "us", splits={"train": 8}, size=128
    )
    out = tmp_path_factory.mktemp("pile") / "pile"
    out.mkdir()
    for number, file in enumerate(sorted(drawn.rglob("*.png"))):
        kind = file.parent.name
        (out / f"{number * 7 % 32:02d}-{kind}.png").write_bytes(file.read_bytes())
    first = min(out.iterdir())
    (out / f"zz-{first.name}").write_bytes(first.read_bytes())
    (out / "broken.png").write_text("this is text")
    write_image(out / "noise.png")
    return out


def until(condition: Callable[[], Any], *, seconds: float = 600) -> Any:
    """Ask again and again until there is an answer that counts as true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := condition():
            return answer
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")


class Page:
    """What a person does on the page of a studio, by any client of it."""

    classes = CLASSES

    def __init__(self, client: Any, folder: Path) -> None:
        self.client, self.folder = client, folder

    def get(self, path: str) -> Any:
        reply = self.client.get(path)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def post(self, path: str, **body: Any) -> Any:
        reply = self.client.post(path, json=body)
        return {**reply.json(), "status": reply.status_code}

    @property
    def state(self) -> Any:
        return self.get("/api/state")

    def begin(self) -> None:
        """Wait for the features, and name the classes."""
        until(lambda: self.state["stage"] == "ready")
        named = [{"name": name, "normal": "normal" in name} for name in CLASSES]
        assert self.post("/api/classes", classes=named)["status"] == 200

    def label(self, count: int) -> list[str]:
        """Label what the queue asks for, as a person does; the names of the images."""
        names, done = self.get("/api/images")["names"], []
        for _ in range(count):
            row = self.get("/api/next")["rows"][0]
            kind = names[row].rpartition("/")[2].removeprefix("zz-")[3:-4].replace("_", " ")
            kind = kind if kind in CLASSES else CLASSES[0]
            assert self.post("/api/label", row=row, label=kind, by="me", seen=0)["status"] == 200
            done.append(names[row])
        return done

    def judged(self, labels: int) -> Any:
        """What is said of the accuracy once so many labels are learned from."""

        def answer() -> Any:
            judged = (self.state["fit"] or {}).get("judged") or {}
            return judged if judged.get("of") == labels else None

        return until(answer)


@pytest.fixture(scope="session")
def page_of() -> type[Page]:
    return Page


@pytest.fixture(scope="module")
def studio(pile: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A studio of the pile that knows its classes, without a socket."""
    pytest.importorskip("starlette")
    from starlette.testclient import TestClient

    from ogkd.serve.server import Settings
    from ogkd.serve.studio.project import Project
    from ogkd.serve.studio.routes import make_studio
    from ogkd.serve.studio.session import Session

    folder = tmp_path_factory.mktemp("studio")
    (folder / "temporary").mkdir()
    project = Project.open(folder / "project")
    project.add_folder(pile)
    session = Session(project)
    app = make_studio(session, folder / "temporary", Settings(max_bytes=2_000_000))
    client = TestClient(app, "http://localhost", raise_server_exceptions=False)
    page = Page(client, folder / "project")
    page.begin()
    yield page
    session.close()

"""Phantoms in class folders, and the same in one pile without their labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from ogkd.data.phantoms import write_folder
from tiny_data import write_image


@pytest.fixture(scope="session")
def drawn(tmp_path_factory) -> Path:
    """{train}/class folders of four classes of ultrasound phantoms."""
    out = tmp_path_factory.mktemp("drawn") / "us"
    return write_folder("us-breast", out, splits={"train": 8}, size=128)


@pytest.fixture(scope="session")
def pile(drawn, tmp_path_factory) -> Path:
    """The same images without their labels, a copy of one, and a file that is no image."""
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

"""A folder of phantoms as people have them: mixed formats, odd names, copies, broken files."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

LEFT_OUT = {"unreadable": 3, "several labels": 2, "copy": 2}  # of a messy folder, by reason


def make_messy(images: Path, folder: Path) -> Path:
    """Class folders from {class}/*.png: at least 12 images per class, and three classes."""
    classes = sorted(path for path in images.iterdir() if path.is_dir())
    names = ["Zyste (gutartig) ä", "=Größer als 2 cm", *(path.name for path in classes[2:])]
    for place, (source, name) in enumerate(zip(classes, names, strict=True)):
        files = sorted(source.iterdir())
        if place == len(classes) - 1:
            files = files[:3]  # a class of three images
        for number, file in enumerate(files):
            pixels = Image.open(file).convert("RGB")
            deep = Path(f"Übersicht {number % 3}") / "1. Tag" if number % 4 == 1 else Path()
            inside = folder / name / deep
            inside.mkdir(parents=True, exist_ok=True)
            if number % 5 == 1:
                pixels.save(inside / f"Bild {number}.JPG", quality=95)
            elif number % 5 == 2:
                pixels.save(inside / f"größe;{number}.tiff")
            elif number % 5 == 3:
                gray = np.asarray(pixels.convert("L")).astype(np.uint16) * 257
                Image.fromarray(gray).save(inside / f"=16 bit, {number}.png")
            elif number % 5 == 4:
                pixels.save(inside / f"a'b\"{number}.bmp")
            else:
                pixels.save(inside / f"{number}.png")
    first, second = (folder / name for name in names[:2])
    (first / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n but no more")
    (first / "empty.jpg").write_bytes(b"")
    (second / "cut.png").write_bytes((second / "0.png").read_bytes()[:200])
    for junk in ("Thumbs.db", ".DS_Store", "notes.txt", "._0.png"):
        (first / junk).write_bytes(b"no picture")
    (folder / "notes.txt").write_text("Übersicht")
    shutil.copy(first / "0.png", second / "wrong class.png")
    shutil.copy(first / "10.png", first / "copy of 10.png")
    Image.open(second / "10.png").save(second / "converted.bmp")
    return folder

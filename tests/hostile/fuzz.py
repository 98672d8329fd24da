"""Guided fuzzing of a reader: files that reach new code are changed further.

    python -m hostile.fuzz READER FOLDER [-max_total_time=60 ...]

needs Atheris and takes libFuzzer's options; `make fuzz` runs every reader. A file that fails is
kept in FOLDER as `crash-...`: what it shows is fixed, and it goes to failures/READER, whose files
`test_readers.py` reads from then on.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import struct
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import atheris

PARSERS = ["ogkd.images", "ogkd.data.read", "ogkd.data.tables", "ogkd.data.splits", "ogkd.files"]
PARSERS += ["ogkd.records", "ogkd.prompts.bank", "ogkd.bench.grid", "ogkd.model.table"]
PARSERS += ["ogkd.serve.studio.project", "pydicom.filereader", "pydicom.dataset", "pydicom.pixels"]
PARSERS += ["nibabel.nifti1", "nibabel.volumeutils", "nibabel.loadsave", "tifffile", "tomllib"]
PARSERS += ["openpyxl.reader", "openpyxl.worksheet", "openpyxl.cell", "zipfile", "csv"]
with atheris.instrument_imports(include=PARSERS):
    from ogkd.errors import OgkdError
    from ogkd.images.decode import silence_decoders

    from . import mutants
    from .readers import READERS


def changed(content: bytes, size: int, seed: int) -> bytes:
    """Another file; of archives, headers and JSON a part changes, so that the rest still fits."""
    choose, other = random.Random(seed), b""
    with contextlib.suppress(Exception):  # it has been changed too much already
        if choose.random() < 0.7:
            other = inside(content, size, choose)
    if not other and choose.random() < 0.02:
        at = choose.randrange(len(content) + 1)
        other = content[:at] + choose.choice([b"[", b'{"a":', b"\0"]) * 5000 + content[at:]
    return other if 0 < len(other) <= size else atheris.Mutate(content, size)


def inside(content: bytes, size: int, choose: random.Random) -> bytes:
    if content.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        name = choose.choice(sorted(parts))
        parts[name] = changed(parts[name], size, choose.getrandbits(32))
        memory = io.BytesIO()
        with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, part in parts.items():
                archive.writestr(name, part)
        return memory.getvalue()
    if content.startswith(b"\x1f\x8b"):
        return gzip.compress(atheris.Mutate(gzip.decompress(content), size), 1)
    if content[8:10] == b'{"':  # safetensors
        (length,) = struct.unpack_from("<Q", content)
        header = mutants.changed([json.loads(content[8 : 8 + length])])(choose)
        return struct.pack("<Q", len(header)) + header + content[8 + length :]
    return mutants.changed([json.loads(content)])(choose)


def main() -> None:
    reader, folder = READERS[sys.argv[1]], Path(sys.argv[2])
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(reader.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    place = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    file = Path(place.name) / "in" / reader.name
    file.parent.mkdir()

    def read(content: bytes) -> None:
        file.write_bytes(content)
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            silence_decoders()
            with contextlib.suppress(OgkdError):
                reader.read(file)
        assert not shown, shown[0].message

    # Seconds for one file, MiB of memory, bytes of a file.
    limits = ["-timeout=20", "-rss_limit_mb=3072", "-max_len=60000", "-print_final_stats=1"]
    words = [sys.argv[0], f"-artifact_prefix={folder}/", *limits, *sys.argv[3:], str(corpus)]
    atheris.Setup(words, read, custom_mutator=changed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

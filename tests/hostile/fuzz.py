"""Guided fuzzing of the readers: files that reach new code are changed further.

    python -m hostile.fuzz FOLDER SECONDS [READER ...]

needs Atheris; `make fuzz` gives it to all readers, two at a time. A file that fails is kept as
FOLDER/READER/crash-...: what it shows is fixed, and it goes to failures/READER, whose files
`test_readers.py` reads from then on. What reached new code stays in FOLDER/READER/corpus.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import random
import re
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


def fuzz(name: str, folder: Path, seconds: str) -> None:
    """Read changed files for some seconds; libFuzzer ends the process, with 77 after a failure."""
    reader, corpus = READERS[name], folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(reader.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    with (folder / "log.txt").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    file = Path(tempfile.mkdtemp(prefix="ogkd-fuzz-")) / "in" / reader.name
    file.parent.mkdir()

    def read(content: bytes) -> None:
        file.write_bytes(content)
        try:
            with contextlib.suppress(OgkdError):
                reader.read(file)
        except BaseException:
            (folder / f"crash-{hashlib.sha1(content).hexdigest()[:12]}").write_bytes(content)
            raise

    warnings.simplefilter("ignore")  # the command line shows none of libraries
    silence_decoders()
    # Seconds for one file, MiB of memory, bytes of a file.
    limits = ["-timeout=20", "-rss_limit_mb=3072", "-max_len=60000", "-print_final_stats=1"]
    limits += [f"-max_total_time={seconds}", f"-artifact_prefix={folder}/"]
    atheris.Setup([sys.argv[0], *limits, str(corpus)], read, custom_mutator=changed)
    atheris.Fuzz()


def main() -> None:
    """Fork a process for each reader: what they import is instrumented once."""
    folder, seconds, *names = sys.argv[1:]
    todo, running, failed = list(names or READERS), dict[int, str](), list[str]()
    while todo or running:
        if todo and len(running) < 2:
            name = todo.pop(0)
            child = os.fork()
            if child == 0:
                fuzz(name, Path(folder) / name, seconds)
            running[child] = name
            continue
        child, status = os.wait()
        name = running.pop(child)
        log = (Path(folder) / name / "log.txt").read_text(errors="replace")
        counted = re.findall(r"(?:executed_units|peak_rss_mb): *(\d+)", log)
        print(name, *counted, "failed" if status else "", flush=True)
        failed += [name] if status else []
    sys.exit(f"Failed: {', '.join(failed)}; see {folder}." if failed else 0)


if __name__ == "__main__":
    main()

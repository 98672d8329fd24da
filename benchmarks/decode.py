"""What reading image files adds to encoding them: images of 1, 2 and 4 megapixels.

BiomedCLIP's image tower at full size with random weights. Three things take turns: the tower alone
on pixels that are there, `encode_files` from files (which decodes ahead in threads), and decoding
alone in one thread. Processor time; wall-clock time means something on an idle machine only.

    python benchmarks/decode.py --out runs/decode.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from biomedclip_size import make_backbone
from ogkd.features.encode import encode_crops, encode_files, whole_image
from ogkd.files import write_json
from ogkd.images import ImageRef

SIZES = (1, 2, 4)  # megapixels


def write_dicom(path: Path, gray: np.ndarray[Any, np.dtype[np.uint16]]) -> None:
    """Twelve bits with a window, not compressed."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import DigitalXRayImageStorageForPresentation as Kind
    from pydicom.uid import ExplicitVRLittleEndian, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = Kind, generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = FileDataset(str(path), {}, file_meta=meta, preamble=bytes(128))
    file.SOPClassUID, file.SOPInstanceUID = Kind, meta.MediaStorageSOPInstanceUID
    file.Rows, file.Columns = gray.shape
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 12, 11, 0
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
    file.WindowCenter, file.WindowWidth, file.PixelData = 2048, 4096, gray.tobytes()
    file.save_as(path)


def write_files(place: Path, megapixels: int, count: int) -> dict[str, list[ImageRef]]:
    """Smooth pictures with some noise; DICOM and one of the PNGs are gray."""
    side = round((megapixels * 1e6) ** 0.5)
    found: dict[str, list[ImageRef]] = {"JPEG": [], "PNG": [], "PNG gray": [], "DICOM": []}
    for number in range(count):
        rng = np.random.default_rng(number)
        small = rng.integers(0, 255, (side // 16, side // 16, 3), dtype=np.uint8)
        large = np.asarray(Image.fromarray(small).resize((side, side))).astype(np.int16)
        noisy = (large + rng.normal(0, 6, large.shape)).clip(0, 255).astype(np.uint8)
        endings = {"JPEG": "jpg", "PNG": "png", "PNG gray": "gray.png", "DICOM": "dcm"}
        for kind, ending in endings.items():
            path = place / f"{megapixels}-{number}.{ending}"
            if kind == "DICOM":
                write_dicom(path, noisy[:, :, 0].astype(np.uint16) * 16)
            else:
                Image.fromarray(noisy[:, :, 0] if kind == "PNG gray" else noisy).save(path)
            found[kind].append(ImageRef.of(path))
    return found


def clock(work: Callable[[], Any]) -> tuple[float, float]:
    """Processor and wall-clock seconds."""
    began = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - began[0], time.perf_counter() - began[1]


def measure(count: int, rounds: int) -> dict[str, Any]:
    """Milliseconds per image of each way, and what the files add."""
    backbone = make_backbone()
    prep, found = backbone.preprocessing, {}
    with tempfile.TemporaryDirectory() as place:
        for size in SIZES:
            for kind, images in write_files(Path(place), size, count).items():
                crops = [whole_image(image, prep) for image in images]
                ways: dict[str, Callable[[], Any]] = {
                    "tower": lambda c=crops: encode_crops(backbone, c, patches=False),
                    "from files": lambda i=images: list(encode_files(backbone, i, batch_size=4)),
                    "decode": lambda i=images: [whole_image(image, prep) for image in i],
                }
                times = [{way: clock(work) for way, work in ways.items()} for _ in range(rounds)]
                row: dict[str, Any] = {}
                for which, name in enumerate(("processor ms", "wall ms")):
                    row[name] = {
                        way: 1000 * statistics.median(t[way][which] for t in times) / count
                        for way in ways
                    }
                    row[f"files against tower, {name[:-3]}"] = statistics.median(
                        t["from files"][which] / t["tower"][which] for t in times
                    )
                found[f"{size} megapixels, {kind}"] = row
                print(json.dumps({f"{size} {kind}": row}), flush=True)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=8, help="of each kind and size")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result = measure(arguments.images, arguments.rounds)
    if arguments.out:
        write_json(arguments.out, result)


if __name__ == "__main__":
    main()

"""What to fit, on what, and how: every option of a fit is declared here and nowhere else.

`ogkd fit` is made from the fields of the request and the text about them, without sentences that
start with "In Python".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ogkd.errors import ConfigError

if TYPE_CHECKING:
    from ogkd.backbones import Backbone
    from ogkd.data.case import Dataset
    from ogkd.data.grouping import Grouping
else:  # they import torch, and `ogkd fit --help`, which is made from this class, must be fast
    Backbone = Dataset = Any

Prompts = str | Path | Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class FitRequest:
    """A fit: labelled images, a frozen backbone, a method and its settings.

    Args:
        data: class folders, {train,val,test}/class folders, a table, a split JSON, a MedMNIST .npz,
            or the name of a downloaded benchmark. In Python also a dataset, a DataFrame
            or a Hugging Face dataset.
        backbone: a known name, a folder or a hub id; auto takes the built-in model for phantoms,
            and for other images the best real backbone on this machine. In Python also a loaded
            backbone.
        method: how to learn: fused (texts and images in closed form, a second), ogkd (the paper's,
            minutes), gda, zero-shot and others; `ogkd methods` lists them.
        shots: images per class to learn from (default: all); with several findings, images with
            and without each of them.
        seed: draws the images, and all other randomness.
        preset: named settings of the method, such as auto or paper/few-shot/btmri (default: the
            paper's for its own benchmarks, else auto).
        settings: single settings over the preset's, such as train.epochs.
        prompts: texts of the classes: a JSON file of class name -> texts, the name of a shipped
            bank, released (the bank of the published numbers), or ours or a folder of banks, which
            have one for each benchmark (default: the benchmark's own bank, else templates). In
            Python also a mapping.
        normal: the classes that mean "nothing found" (default: the benchmark's, or those with
            "normal" or "healthy" in their name).
        unlabelled: more images of the same kind, without labels, to learn from: folders or files,
            for methods that can use them, such as fused.
        root: the folder that the paths of a table or split file are relative to.
        class_names: the classes in label order, if the data does not name them.
        findings: the columns of a table that are findings, each 1, 0 or empty (unknown), where an
            image may show several (default: if there is no column label, all columns of this kind).
        columns: headings of a table that are not called path, label, split, group or labels. In
            Python a mapping from these names.
        slice: the slice of volumes, or frame of cines, that name none: axis=2,index=middle or
            index=0.
        cases: what makes images one case with one answer: a column of the table, such as exam or
            patient, or folder, or the study or series of DICOM files (default: each image is one).
        slices: learn from whole volumes and clips, each a case: all of their slices, every=4 or
            N=16; with an axis if slices are not axial (axis=1,N=16).
        on_error: stop at unreadable files and name them all, or skip them before shots are drawn
            and list them in skipped.csv.
        out: the model folder to write. Called again, an interrupted fit into it continues, and a
            finished one is recognised.
        restart: fit from the beginning: discard an interrupted fit into the same folder, and
            replace a finished or calibrated model there.
        device: where to compute: auto, cpu, cuda, cuda:1 or mps.
        engine: how images are encoded: torch (float32), bf16 or fp16 (half precision), or auto:
            bf16 where a trial on this machine shows it right and at least 1.3 times as fast.
    """

    data: str | Path | Dataset
    _: KW_ONLY
    backbone: str | Path | Backbone = "auto"
    method: str = "fused"
    shots: int | None = None
    seed: int = 1
    preset: str | None = None
    settings: Mapping[str, Any] | None = None
    prompts: Prompts | None = None
    normal: Sequence[str] | None = None
    unlabelled: str | Path | Sequence[str | Path] | None = None
    root: str | Path | None = None
    class_names: Sequence[str] | None = None
    findings: Sequence[str] | None = None
    columns: Mapping[str, str] | None = None
    slice: str | None = None
    cases: str | None = None
    slices: str | None = None
    on_error: Literal["stop", "skip"] = "stop"
    out: str | Path | None = None
    restart: bool = False
    device: str = "auto"
    engine: str = "torch"

    def __post_init__(self) -> None:
        from ogkd.data.splits import check_seed
        from ogkd.features.unreadable import check_on_error

        check_on_error(self.on_error)
        check_seed(self.seed)
        grouping = self.grouping  # checked now
        if grouping is not None and grouping.joins_images and self.unlabelled is not None:
            raise ConfigError(
                "Unlabelled images are learned from as single images, not as cases of several: "
                "leave them out.",
                argument="unlabelled",
            )

    @property
    def grouping(self) -> Grouping:
        """What makes a case."""
        from ogkd.data.grouping import Grouping

        return Grouping.parse(self.cases, self.slices, self.slice)

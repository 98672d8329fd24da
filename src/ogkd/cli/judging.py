"""Labelled images as a model sees them: what `evaluate`, `report` and `calibrate` share."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ogkd.cli.options import read_classes
from ogkd.errors import ConfigError

if TYPE_CHECKING:
    from ogkd.audit import Audit
    from ogkd.datasets.manifest import Manifest
    from ogkd.evaluation import Judged
    from ogkd.features.unreadable import BadFile
    from ogkd.images import SliceRule
    from ogkd.model.classifier import Classifier

__all__ = ["Verdict", "judge_data", "refuse_folders", "usable"]


@dataclass(frozen=True)
class Verdict:
    """A model, the data, and what is to be said of the one on the other."""

    classifier: Classifier
    manifest: Manifest  # all of the data
    judged: Judged
    result: dict[str, Any]
    skipped: list[BadFile] | None  # None where nothing was to be skipped

    def write_report(
        self, place: Path, *, names: bool, images: bool, audit: Audit | None = None
    ) -> None:
        """Write the page about it."""
        from ogkd.report import write_report

        write_report(
            place,
            self.classifier,
            self.manifest,
            self.judged,
            command=shlex.join(["ogkd", *sys.argv[1:]]),
            show_names=names,
            audit=audit,
            images=images,
            result=self.result,
        )

    def write_skipped(self, beside: Path) -> None:
        """List the files that were left out, beside another file."""
        from ogkd.features.unreadable import SKIPPED, write_skipped

        if self.skipped is not None:
            write_skipped(beside.with_name(SKIPPED), self.skipped)


def judge_data(
    model: Path,
    data: Path,
    *,
    split: str,
    graded: bool | None,
    resamples: int,
    root: Path | None,
    classes: str | None,
    slice: str | None,
    on_error: str,
    backbone: str | None,
    device: str,
    encoder_engine: str | None,
) -> Verdict:
    """Judge a part of the data by the options of the command line; warnings go to the screen."""
    from ogkd.datasets.fetch import resolve_data
    from ogkd.evaluation import describe, judge
    from ogkd.features.unreadable import check_on_error
    from ogkd.images import SliceRule
    from ogkd.model.classifier import load
    from ogkd.model.decide import engine_note

    skip = check_on_error(on_error) == "skip"
    rule = None if slice is None else SliceRule.parse(slice)
    manifest = resolve_data(data, root=root, class_names=read_classes(classes))
    classifier = load(model, backbone=backbone, device=device, engine=encoder_engine)
    part, skipped = usable(manifest, split, rule or classifier.card.slice_rule, skip=skip)
    judged = judge(classifier, part, split=split)
    result = describe(
        judged,
        classifier.calibration,
        graded=graded,
        resamples=resamples,
        learned=classifier.card.support_images,
    )
    _warn(result["images"], result["learned_from"], result["calibrated_on"])
    if note := engine_note(classifier):
        typer.echo(f"Note: {note}", err=True)
    if not manifest.has_splits and not classifier.card.support_images:
        typer.echo(
            f"Note: {data} has no splits, so all of its images are judged. Images that the model "
            "has learned from make it look better than it is.",
            err=True,
        )
    return Verdict(classifier, manifest, judged, result, skipped if skip else None)


def usable(
    manifest: Manifest, split: str, rule: SliceRule | None, *, skip: bool
) -> tuple[Manifest, list[BadFile]]:
    """The part to judge, with slices named and, if asked for, without unreadable files."""
    from ogkd.features.unreadable import readable_items

    items = list(replace(manifest, items=tuple(manifest.part(split))).sliced(rule).items)
    bad: list[BadFile] = []
    if skip:
        items, bad = readable_items(items, manifest.class_names)
        typer.echo(
            f"Left out {len(bad)} file(s) that cannot be read; {len(items)} remain.", err=True
        )
        for file in bad[:20]:
            typer.echo(f"  {file.reason}", err=True)
    return replace(manifest, items=tuple(items)), bad


def refuse_folders(**places: Path | None) -> None:
    """Refuse options that name a folder where a file is to be written."""
    for option, place in places.items():
        if place is not None and place.is_dir():
            raise ConfigError(f"--{option} {place} is a folder. Give the name of a file in it.")


def _warn(images: int, learned: int, calibrated: int) -> None:
    """Numbers on images that the model knows are too good, and must not pass unnoticed."""
    if learned:
        typer.echo(
            f"Warning: the model learned from {learned} of these {images} images. It looks better "
            "than it is.",
            err=True,
        )
    if calibrated:
        typer.echo(
            f"Warning: the model was calibrated on {calibrated} of these {images} images. Its "
            "probabilities, sets and thresholds look better than they are.",
            err=True,
        )

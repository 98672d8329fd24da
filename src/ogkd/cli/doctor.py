"""`ogkd doctor`: checks of this machine, one line each, with a fix if one is needed."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

import typer

import ogkd
from ogkd.cli import options as opt
from ogkd.cli.output import print_json
from ogkd.errors import BackboneError
from ogkd.files import cache_dir

if TYPE_CHECKING:
    from ogkd.backbones.verify import Check

_COLOURS = {"PASS": "green", "WARN": "yellow", "SKIP": "yellow", "FAIL": "red"}
_GIB = 1024**3
_EXTRAS = {
    "dicom": ("pydicom", "DICOM and NIfTI files"),
    "slides": ("openslide", "whole slides"),
    "serve": ("uvicorn", "the web pages"),
    "onnx": ("onnxruntime", "ONNX export"),
    "ray": ("ray", "clusters"),
    "audit": ("cleanlab", "label-error search"),
    "prompts": ("openai", "prompts by a language model"),
    "bench": ("pandas", "tables and figures of benchmarks"),
}


@dataclass(frozen=True)
class Finding:
    """The outcome of one check: its subject, what was found, and how to fix it."""

    status: Literal["PASS", "WARN", "FAIL"]
    what: str
    found: str
    fix: str = ""


def doctor(as_json: opt.JsonOption = False) -> None:
    """Check versions, device, memory, disk, cache, hub, backbones, bf16 and extras.

    The exit code is 2 if a check fails; warnings do not change it.
    """
    report_checks(examine(), as_json=as_json)


def report_checks(checks: Iterable[Finding | Check], *, as_json: bool = False) -> None:
    """Print each check when it is done; end with exit code 2 if one has failed."""
    if as_json:
        checks = list(checks)
        print_json([asdict(check) for check in checks], ascii=True)
    failed = False
    for check in checks:
        failed = failed or check.status == "FAIL"
        if not as_json:
            typer.secho(f"{check.status:5}", fg=_COLOURS[check.status], nl=False)
            typer.echo(f"{check.what}: {check.found}")
            if check.fix:
                typer.echo(f"      fix: {check.fix}")
    if failed:
        sys.exit(2)


def examine() -> Iterator[Finding]:
    """Run every check in turn; a check that crashes is a finding."""
    checks = (_python, _packages, _device, _bf16, _memory, _cache, _hub, _backbones, _extras)
    for check in checks:
        try:
            yield from check()
        except Exception as error:
            what = check.__name__.strip("_")
            yield Finding("FAIL", what, f"the check itself failed: {error!r}", "report this line")


def _warn_unless(fine: bool, what: str, found: str, fix: str) -> Finding:
    return Finding("PASS", what, found) if fine else Finding("WARN", what, found, fix)


def _python() -> Iterator[Finding]:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info >= (3, 11):  # noqa: UP036 - the machine is checked, not the code
        yield Finding("PASS", "Python", found)
    else:
        yield Finding("FAIL", "Python", found, "use Python 3.11 or newer")


def _packages() -> Iterator[Finding]:
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement

    found, wrong = [f"ogkd {version('ogkd')}"], []
    for requirement in map(Requirement, requires("ogkd") or []):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            here = version(requirement.name)
        except PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        found.append(f"{requirement.name} {here}")
        if not requirement.specifier.contains(here, prereleases=True):
            wrong.append(f"{requirement.name} {here} is not {requirement.specifier}")
    if wrong:
        yield Finding("FAIL", "Packages", ", ".join(wrong), "pip install --upgrade ogkd")
    else:
        yield Finding("PASS", "Packages", ", ".join(found))


def _device() -> Iterator[Finding]:
    import psutil
    import torch

    found = "cpu (everything runs on it; a GPU only adds speed)"
    if torch.cuda.is_available():
        found = f"cuda: {torch.cuda.get_device_name()}"
    elif torch.backends.mps.is_available():
        found = "mps (Apple)"
    yield Finding("PASS", "Device", found)
    threads, logical = torch.get_num_threads(), os.cpu_count() or 1
    cores = psutil.cpu_count(logical=False) or logical
    found = f"{threads} for {cores} core(s)"
    yield _warn_unless(threads <= logical, "Threads", found, f"export OMP_NUM_THREADS={cores}")


def _bf16() -> Iterator[Finding]:
    from ogkd.backbones.engines import half_problem
    from ogkd.backbones.loading import resolve_device

    device = str(resolve_device("auto"))
    problem = half_problem(device, "bf16")
    found = f"works here, on {device} (used only with `--engine bf16`)"
    if problem:
        found = f"a bf16 computation fails here, on {device} ({problem})"
    fix = "nothing for ogkd, which uses float32; turn bf16 off in other tools"
    yield _warn_unless(not problem, "bf16", found, fix)


def _memory() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    found = f"{memory.available / _GIB:.1f} GiB free of {memory.total / _GIB:.1f}"
    fix = "BiomedCLIP needs about 2 GiB: close other programs"
    yield _warn_unless(memory.available >= 2 * _GIB, "Memory", found, fix)


def _cache() -> Iterator[Finding]:
    folder = cache_dir().absolute()
    place = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        found = f"{folder} cannot be written ({error.strerror})"
        yield Finding("FAIL", "Cache", found, "set OGKD_CACHE to a folder you own")
        return
    size = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):  # another process may be deleting files
            size += file.stat().st_size if file.is_file() else 0
    yield Finding("PASS", "Cache", f"{folder} contains {size / _GIB:.2f} GiB")
    free = shutil.disk_usage(place).free
    fix = "fetching BiomedCLIP takes about 2 GiB: free space or set OGKD_CACHE"
    yield _warn_unless(free >= 3 * _GIB, "Disk", f"{free / _GIB:.1f} GiB free", fix)


def _hub() -> Iterator[Finding]:
    from urllib.error import HTTPError
    from urllib.parse import urlsplit
    from urllib.request import Request, urlopen

    from huggingface_hub import constants

    fix = "run `ogkd backbones fetch NAME` on a machine with network access and copy the folder"
    if constants.HF_HUB_OFFLINE:
        yield Finding("WARN", "Model hub", "HF_HUB_OFFLINE is set: nothing is downloaded", fix)
        return
    host = constants.ENDPOINT
    try:
        host = urlsplit(constants.ENDPOINT).netloc or host
        # Uses the proxy of the environment, if there is one.
        with urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=4):
            yield Finding("PASS", "Model hub", f"{host} answers")
    except HTTPError as error:
        yield Finding("PASS", "Model hub", f"{host} answers (with status {error.code})")
    except (OSError, ValueError) as error:  # a ValueError is about the URL in HF_ENDPOINT
        yield Finding("WARN", "Model hub", f"{host} does not answer ({error})", fix)


def _backbones() -> Iterator[Finding]:
    from ogkd.backbones.hub import present_backbones
    from ogkd.fitting.choose import best_present

    try:
        ogkd.load_backbone("builtin")
    except BackboneError as error:
        yield Finding("FAIL", "Backbones", str(error), "reinstall ogkd: its files are damaged")
        return
    present = present_backbones()
    fine = "biomedclip" in present
    found = ", ".join(["builtin", *present]) + ("" if fine else "; no BiomedCLIP")
    chosen = f"{name} is used" if (name := best_present()) else "none: a backbone must be named"
    found += f" (for real images {chosen}; builtin only for phantoms)"
    fix = "ogkd backbones fetch biomedclip (0.8 GB), or pass --backbone FOLDER"
    yield _warn_unless(fine, "Backbones", found, fix)


def _extras() -> Iterator[Finding]:
    for extra, (module, use) in _EXTRAS.items():
        here = find_spec(module) is not None
        found = f"{module} is installed ({use})" if here else f"not installed ({use})"
        yield _warn_unless(here, f"Extra {extra}", found, f'pip install "ogkd[{extra}]"')

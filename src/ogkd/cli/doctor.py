"""`ogkd doctor`: checks of this machine, one line each, with a fix if one is needed."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec

import typer

import ogkd
from ogkd.files import cache_dir

Row = tuple[str, str, str, str]  # status, subject, result, fix
_Outcome = tuple[bool, str]  # whether all is well, and what was found

_COLOURS = {"PASS": "green", "WARN": "yellow", "SKIP": "yellow", "FAIL": "red"}
_GIB = 1024**3
_EXTRAS = {  # what of each is imported
    "dicom": "pydicom",
    "serve": "uvicorn",
    "onnx": "onnxruntime",
    "audit": "cleanlab",
    "bench": "pandas",
    "excel": "openpyxl",
}


def doctor() -> None:
    """Check versions, device, memory, disk, cache, hub, backbones and extras.

    The exit code is 2 if a check fails; warnings do not change it.
    """
    report_checks(examine())


def report_checks(rows: Iterable[Row]) -> None:
    """Print each check when it is done; end with exit code 2 if one has failed."""
    failed = False
    for status, subject, result, fix in rows:
        failed = failed or status == "FAIL"
        typer.secho(f"{status:5}", fg=_COLOURS[status], nl=False)
        typer.echo(f"{subject}: {result}" + (f"\n      fix: {fix}" if fix else ""))
    if failed:
        sys.exit(2)


def examine() -> Iterator[Row]:
    """Run every check in turn; one that raises an error has failed."""
    for subject, (check, severity, fix) in _CHECKS.items():
        try:
            good, result = check()
        except Exception as error:
            good, result, severity = False, f"{type(error).__name__}: {error}", "FAIL"
        yield ("PASS", subject, result, "") if good else (severity, subject, result, fix)


def _versions() -> _Outcome:
    from importlib.metadata import version

    names = ("ogkd", "torch", "transformers", "numpy")
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    return True, f"Python {platform.python_version()} on {platform.platform()}, {packages}"


def _device() -> _Outcome:
    import torch

    from ogkd.backbones.loading import resolve_device

    device = resolve_device("auto").type
    name = torch.cuda.get_device_name() if device == "cuda" else "a GPU only adds speed"
    threads, logical = torch.get_num_threads(), os.cpu_count() or 1
    return threads <= logical, f"{device} ({name}), {threads} thread(s) for {logical} core(s)"


def _memory() -> _Outcome:
    import psutil

    memory = psutil.virtual_memory()
    result = f"{memory.available / _GIB:.1f} GiB free of {memory.total / _GIB:.1f}"
    return memory.available >= 2 * _GIB, result


def _cache() -> _Outcome:
    folder = cache_dir().absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    with tempfile.TemporaryFile(dir=existing):
        pass
    free = shutil.disk_usage(existing).free
    return free >= 3 * _GIB, f"{folder}, {free / _GIB:.1f} GiB free"


def _hub() -> _Outcome:
    import httpx

    from ogkd.download import HUB, hub_offline, mirrored

    if hub_offline():
        return False, "HF_HUB_OFFLINE is set: nothing is downloaded"
    try:
        status = httpx.head(mirrored(HUB), timeout=4).status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return False, f"{mirrored(HUB)} does not answer ({error})"
    return True, f"{mirrored(HUB)} answers ({status})"


def _backbones() -> _Outcome:
    from ogkd.backbones.hub import present_backbones
    from ogkd.fitting.choose import best_present

    ogkd.load_backbone("builtin")
    present = present_backbones()
    chosen = best_present() or "none"
    return "biomedclip" in present, f"{', '.join(['builtin', *present])}; for images: {chosen}"


def _extras() -> _Outcome:
    absent = [name for name, module in _EXTRAS.items() if find_spec(module) is None]
    return not absent, f"not installed: {', '.join(absent)}" if absent else "all installed"


# Each check, how bad it is if not all is well, and what to do then.
_CHECKS: dict[str, tuple[Callable[[], _Outcome], str, str]] = {
    "Versions": (_versions, "FAIL", ""),
    "Device": (_device, "WARN", "set OMP_NUM_THREADS to the number of cores"),
    "Memory": (_memory, "WARN", "BiomedCLIP needs about 2 GiB: close other programs"),
    "Cache": (_cache, "WARN", "set OGKD_CACHE to a folder with 3 GiB of free space"),
    "Model hub": (_hub, "WARN", "fetch backbones on another machine and copy their folders"),
    "Backbones": (_backbones, "WARN", "ogkd backbones fetch biomedclip (0.8 GB)"),
    "Extras": (_extras, "WARN", 'those that you need: pip install "ogkd[NAME]"'),
}

"""`ogkd doctor`: checks of this machine, one line each, with a fix if one is needed."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec

import typer

import ogkd
from ogkd.cli.output import print_json
from ogkd.errors import BackboneError
from ogkd.files import cache_dir

Row = tuple[str, str, str, str]  # status, subject, result, fix
_Outcome = tuple[str, str, str]  # status, result, fix

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


def doctor() -> None:
    """Check versions, device, memory, disk, cache, hub, backbones, bf16 and extras.

    The exit code is 2 if a check fails; warnings do not change it.
    """
    report_checks(examine())


def report_checks(rows: Iterable[Row], *, as_json: bool = False) -> None:
    """Print each check when it is done; end with exit code 2 if one has failed."""
    if as_json:
        rows = list(rows)
        keys = ("status", "subject", "result", "fix")
        print_json([dict(zip(keys, row, strict=True)) for row in rows], ascii=True)
    failed = False
    for status, subject, result, fix in rows:
        failed = failed or status == "FAIL"
        if not as_json:
            typer.secho(f"{status:5}", fg=_COLOURS[status], nl=False)
            typer.echo(f"{subject}: {result}" + (f"\n      fix: {fix}" if fix else ""))
    if failed:
        sys.exit(2)


def examine() -> Iterator[Row]:
    """Run every check in turn; a check that crashes has failed."""
    for subject, check in _CHECKS.items():
        try:
            status, result, fix = check()
        except Exception as error:
            status, result, fix = "FAIL", f"the check itself failed: {error!r}", "report this line"
        yield status, subject, result, fix


def _pass_if(good: bool, result: str, fix: str, *, otherwise: str = "WARN") -> _Outcome:
    return ("PASS", result, "") if good else (otherwise, result, fix)


def _packages() -> _Outcome:
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement

    installed, wrong = [f"ogkd {version('ogkd')}"], []
    for requirement in map(Requirement, requires("ogkd") or []):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            here = version(requirement.name)
        except PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        installed.append(f"{requirement.name} {here}")
        if not requirement.specifier.contains(here, prereleases=True):
            wrong.append(f"{requirement.name} {here} is not {requirement.specifier}")
    fix = "pip install --upgrade ogkd"
    return _pass_if(not wrong, ", ".join(wrong or installed), fix, otherwise="FAIL")


def _device() -> _Outcome:
    import torch

    from ogkd.backbones.loading import resolve_device

    device = resolve_device("auto").type
    name = torch.cuda.get_device_name() if device == "cuda" else "a GPU only adds speed"
    return "PASS", f"{device} ({name})", ""


def _threads() -> _Outcome:
    import psutil
    import torch

    threads, logical = torch.get_num_threads(), os.cpu_count() or 1
    cores = psutil.cpu_count(logical=False) or logical
    fix = f"export OMP_NUM_THREADS={cores}"
    return _pass_if(threads <= logical, f"{threads} for {cores} core(s)", fix)


def _bf16() -> _Outcome:
    from ogkd.backbones.engines import half_problem
    from ogkd.backbones.loading import resolve_device

    device = str(resolve_device("auto"))
    problem = half_problem(device, "bf16")
    result = f"{device}: {problem or 'works (used only with `--engine bf16`)'}"
    return _pass_if(not problem, result, "nothing for ogkd, which uses float32")


def _memory() -> _Outcome:
    import psutil

    memory = psutil.virtual_memory()
    result = f"{memory.available / _GIB:.1f} GiB free of {memory.total / _GIB:.1f}"
    fix = "BiomedCLIP needs about 2 GiB: close other programs"
    return _pass_if(memory.available >= 2 * _GIB, result, fix)


def _cache() -> _Outcome:
    folder = cache_dir().absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return "FAIL", f"{folder} cannot be written ({error.strerror})", "set OGKD_CACHE"
    free = shutil.disk_usage(existing).free
    fix = "fetching BiomedCLIP takes about 2 GiB: free space or set OGKD_CACHE"
    return _pass_if(free >= 3 * _GIB, f"{folder}, {free / _GIB:.1f} GiB free", fix)


def _hub() -> _Outcome:
    import httpx

    from ogkd.download import HUB, hub_offline, mirrored

    fix = "run `ogkd backbones fetch NAME` on a machine with network access and copy the folder"
    if hub_offline():
        return "WARN", "HF_HUB_OFFLINE is set: nothing is downloaded", fix
    try:
        status = httpx.head(mirrored(HUB), timeout=4).status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return "WARN", f"{mirrored(HUB)} does not answer ({error})", fix
    return "PASS", f"{mirrored(HUB)} answers ({status})", ""


def _backbones() -> _Outcome:
    from ogkd.backbones.hub import present_backbones
    from ogkd.fitting.choose import best_present

    try:
        ogkd.load_backbone("builtin")
    except BackboneError as error:
        return "FAIL", str(error), "reinstall ogkd: its files are damaged"
    present = present_backbones()
    chosen = best_present() or "none"
    result = f"{', '.join(['builtin', *present])}; for real images: {chosen}"
    fix = "ogkd backbones fetch biomedclip (0.8 GB), or pass --backbone FOLDER"
    return _pass_if("biomedclip" in present, result, fix)


def _extra(name: str) -> _Outcome:
    module, use = _EXTRAS[name]
    here = find_spec(module) is not None
    result = f"{module} is installed ({use})" if here else f"not installed ({use})"
    return _pass_if(here, result, f'pip install "ogkd[{name}]"')


_CHECKS: dict[str, Callable[[], _Outcome]] = {
    "Python": lambda: ("PASS", f"{platform.python_version()} on {platform.platform()}", ""),
    "Packages": _packages,
    "Device": _device,
    "Threads": _threads,
    "bf16": _bf16,
    "Memory": _memory,
    "Cache": _cache,
    "Model hub": _hub,
    "Backbones": _backbones,
    **{f"Extra {name}": partial(_extra, name) for name in _EXTRAS},
}

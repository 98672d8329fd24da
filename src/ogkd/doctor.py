"""What this machine has and lacks: findings with a status and, where needed, a fix."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import Literal
from urllib.parse import urlsplit

import psutil

from ogkd.files import cache_dir

__all__ = ["Finding", "examine"]

Status = Literal["PASS", "WARN", "FAIL"]

_GIB = 1024**3
_EXTRAS = {
    "dicom": ("pydicom", "DICOM and NIfTI files"),
    "serve": ("gradio", "the web page"),
    "onnx": ("onnxruntime", "ONNX export"),
    "ray": ("ray", "clusters"),
    "audit": ("cleanlab", "label-error search"),
}
_BF16_PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); print((a @ a).sum())"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's: what was looked at, what was found, what to do."""

    status: Status
    what: str
    found: str
    fix: str = ""


def examine() -> Iterator[Finding]:
    """Run every check in turn; a check that itself fails is a finding, not a crash."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python,
        _packages,
        _device,
        _bf16,
        _memory,
        _cache,
        _hub,
        _backbones,
        _extras,
    )
    for check in checks:
        try:
            yield from check()
        except Exception as error:
            what = check.__name__.strip("_")
            yield Finding("FAIL", what, f"the check itself failed: {error!r}", "report this line")


def _python() -> Iterator[Finding]:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info >= (3, 11):  # noqa: UP036 - asked of the machine, not of the code
        yield Finding("PASS", "Python", found)
    else:
        yield Finding("FAIL", "Python", found, "use Python 3.11 or newer")


def _packages() -> Iterator[Finding]:
    found, missing = [], []
    for requirement in requires("ogkd") or []:
        if "extra ==" in requirement:
            continue
        name = requirement.split(">")[0].split("<")[0].split("=")[0].strip()
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        yield Finding(
            "FAIL", "Packages", f"missing: {', '.join(missing)}", "pip install --upgrade ogkd"
        )
    yield Finding("PASS", "Packages", ", ".join([f"ogkd {version('ogkd')}", *found]))


def _device() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        yield Finding("PASS", "Device", f"cuda: {torch.cuda.get_device_name()}")
    elif torch.backends.mps.is_available():
        yield Finding("PASS", "Device", "mps (Apple)")
    else:
        yield Finding("PASS", "Device", "cpu (everything runs on it; a GPU only adds speed)")
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    threads = torch.get_num_threads()
    if threads > (os.cpu_count() or 1):
        yield Finding(
            "WARN", "Threads", f"{threads} for {cores} core(s)", f"export OMP_NUM_THREADS={cores}"
        )
    else:
        yield Finding("PASS", "Threads", f"{threads} for {cores} core(s)")


def _bf16() -> Iterator[Finding]:
    """Multiply in a child process: some machines die of an illegal instruction here."""
    try:
        child = subprocess.run(
            [sys.executable, "-c", _BF16_PROBE], capture_output=True, timeout=120, check=False
        )
        safe, reason = child.returncode == 0, f"exit code {child.returncode}"
    except subprocess.TimeoutExpired:
        safe, reason = False, "no answer in 120 s"
    if safe:
        yield Finding("PASS", "bf16", "safe here (ogkd computes in float32 on CPU all the same)")
    else:
        yield Finding(
            "WARN",
            "bf16",
            f"a bf16 product kills the process here ({reason})",
            "nothing to do for ogkd, which uses float32; keep bf16 off in other tools",
        )


def _memory() -> Iterator[Finding]:
    memory = psutil.virtual_memory()
    found = f"{memory.available / _GIB:.1f} GiB free of {memory.total / _GIB:.1f}"
    if memory.available < 2 * _GIB:
        yield Finding("WARN", "Memory", found, "BiomedCLIP needs about 2 GiB: close other programs")
    else:
        yield Finding("PASS", "Memory", found)


def _cache() -> Iterator[Finding]:
    folder = cache_dir()
    place = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(place, os.W_OK):
        yield Finding(
            "FAIL", "Cache", f"{folder} cannot be written", "set OGKD_CACHE to a folder you own"
        )
        return
    try:
        with tempfile.TemporaryFile(dir=place if place.is_dir() else None):
            pass
    except OSError as error:
        yield Finding("FAIL", "Cache", f"{folder}: {error}", "set OGKD_CACHE to another folder")
        return
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    yield Finding("PASS", "Cache", f"{folder} holds {size / _GIB:.2f} GiB")
    free = shutil.disk_usage(place).free
    if free < 3 * _GIB:
        yield Finding(
            "WARN",
            "Disk",
            f"{free / _GIB:.1f} GiB free",
            "fetching BiomedCLIP takes about 2 GiB: free space or set OGKD_CACHE",
        )
    else:
        yield Finding("PASS", "Disk", f"{free / _GIB:.0f} GiB free")


def _hub() -> Iterator[Finding]:
    from huggingface_hub import constants

    fix = "run `ogkd backbones fetch NAME` where there is a network and copy the folder, or use one"
    if constants.HF_HUB_OFFLINE:
        yield Finding("WARN", "Model hub", "HF_HUB_OFFLINE is set: nothing is fetched", fix)
        return
    address = urlsplit(constants.ENDPOINT)
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        with socket.create_connection((address.hostname or "", port), timeout=4):
            yield Finding("PASS", "Model hub", f"{address.hostname} answers")
    except OSError as error:
        yield Finding("WARN", "Model hub", f"{address.hostname} does not answer ({error})", fix)


def _backbones() -> Iterator[Finding]:
    from ogkd.backbones.hub import present_backbones

    from ogkd.backbones import load_backbone

    load_backbone("builtin")
    present = ["builtin", *present_backbones()]
    if "biomedclip" in present:
        yield Finding("PASS", "Backbones", ", ".join(present))
    else:
        yield Finding(
            "WARN",
            "Backbones",
            f"{', '.join(present)}; no BiomedCLIP",
            "ogkd backbones fetch biomedclip (0.8 GB), or pass --backbone FOLDER",
        )


def _extras() -> Iterator[Finding]:
    for extra, (module, use) in _EXTRAS.items():
        if find_spec(module) is not None:
            yield Finding("PASS", f"Extra {extra}", f"{module} is installed ({use})")
        else:
            yield Finding(
                "WARN", f"Extra {extra}", f"not installed ({use})", f'pip install "ogkd[{extra}]"'
            )

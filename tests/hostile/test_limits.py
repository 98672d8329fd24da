"""Numbers, addresses and texts that no computation survives are refused in seconds."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from pathlib import Path

import pytest

import ogkd
from ogkd.download import download
from ogkd.errors import ConfigError, DataError, OgkdError
from ogkd.prompts.generate import chat
from tiny_backbones import make_clip

from . import harness

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks"),
]
EVERY = os.environ.get("OGKD_HOSTILE") == "all"
HUGE = ("99999999999999999999", "99999999999", "1" * 5000)[: None if EVERY else 1]
PLACES = (
    "fit {data} --backbone builtin --method gda --seed {number} --out m",
    "fit {data} --backbone builtin --method coop --set train.epochs={number} --out m",
    "fit {data} --backbone builtin --method coop --set context.n_ctx={number} --out m",
    "fit {data} --backbone builtin --method coop --set views={number} --out m",
    "evaluate {model} {data} --resamples {number}",
    "phantoms histology --train {number} --out new",
    "phantoms histology --train 1 --size {number} --out new",
    "phantoms histology --train 1 --test 0 --val 0 --seed {number} --out new",
    "bench run phantoms/few-shot --out new --dry-run --seeds {number}",
    "bench run phantoms/few-shot --out new --dry-run --seeds 1-{number}",
    "bench run phantoms/few-shot --out new --dry-run --shots 1-{number}",
    "bench run phantoms/few-shot --workers {number} --out runs",
    "app {model} --port {number}",
)


def refused(words, folder, **options):
    """The message of a command that must fail well within the time limit."""
    done = harness.run(words, folder, **options)
    assert done.problem is None, str(done)
    assert done.code == 2, f"{done.words}: {done.output[-300:]}"
    return done.errors


@pytest.mark.parametrize("number", HUGE, ids=lambda text: f"{len(text)} digits")
@pytest.mark.parametrize("line", PLACES)
def test_a_number_that_multiplies_work_has_a_limit(line, number, world, tmp_path):
    refused(line.format(number=number, **world).split(), tmp_path)


SIZES = {
    "num_hidden_layers": 10**9,
    "hidden_size": 10**9,
    "vocab_size": 10**12,
    "image_size": 10**8,
    "intermediate_size": 10**9,
    "max_position_embeddings": 10**9,
    "num_attention_heads": 10**9,
}


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("number", [None, 100_000, 1e300][: None if EVERY else 1])
def test_a_configuration_of_an_impossible_network_is_refused_before_it_is_built(
    key, number, world, tmp_path
):
    make_clip(tmp_path / "b")
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    for tower in ("text_config", "vision_config"):
        if key in config[tower]:
            config[tower][key] = SIZES[key] if number is None else number
    (tmp_path / "b" / "config.json").write_text(json.dumps(config))
    message = refused(["embed", world["data"], "--backbone", "b", "--out", "e"], tmp_path)
    assert key in message or number == 100_000, message


ADDRESSES = ("http://[::1", "https://", "http://a\x00b", "https://" + "x" * 70_000, "nonsense")


@pytest.mark.parametrize("url", ADDRESSES, ids=range(len(ADDRESSES)))
def test_an_invalid_url_is_refused(url, tmp_path):
    for attempt in (lambda: download(url, tmp_path / "file"), lambda: chat(url, "model")):
        with pytest.raises(DataError) as caught:
            attempt()
        assert caught.value.argument == "url"


HALF = "a\ud800b"  # in a JSON file; a folder's name that is not UTF-8 gives "a\udcffb"


@pytest.mark.parametrize("name", [HALF, "a\udcffb", "a\x1b[31mb", "a\0b"], ids=ascii)
def test_class_names_that_are_not_text_are_refused(name, world):
    for attempt in (
        lambda: ogkd.zero_shot([name, "other"], backbone="builtin"),
        lambda: ogkd.fit(world["data"], backbone="builtin", class_names=[name, "other"]),
        lambda: ogkd.read_dataset(world["data"], class_names=[name, "other"]),
    ):
        with pytest.raises(OgkdError):
            attempt()


@pytest.mark.filterwarnings("ignore::ogkd.errors.OgkdWarning")
@pytest.mark.parametrize("bank", [{HALF: ["x"], "other": ["y"]}, {"a": ["x"], "other": [HALF]}])
def test_prompts_that_are_not_text_are_refused(bank, world):
    with pytest.raises(ConfigError):
        ogkd.fit(world["data"], backbone="builtin", method="zero-shot", prompts=bank)


def test_class_folders_that_are_not_utf8_are_refused(world, tmp_path):
    first, second = sorted((world["data"] / "train").iterdir())[:2]
    for source, name in ((first, b"plain"), (second, b"caf\xe9")):
        shutil.copytree(source, tmp_path / "bad" / os.fsdecode(name))
    for line in ("fit bad --method gda --backbone builtin --out m", "data check bad"):
        done = harness.run(line.split(), tmp_path)
        assert done.problem is None
        assert "characters that are not text" in done.errors, str(done)
    words = ["predict", "--zero-shot", os.fsdecode(b"a\xff,b"), world["data"], "-b", "builtin"]
    refused(words, tmp_path)


def short_of_memory(megabytes):
    """What to call in a child: it may have so much more memory than it has now."""

    def limit():
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + (megabytes << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    return limit


@pytest.mark.parametrize("megabytes", [1, 4, 8, 16, 32, 64] if EVERY else [8])
@pytest.mark.parametrize(
    "line",
    [
        "fit {data} --backbone builtin --method fused --out m",
        "fit {data} --backbone builtin --method coop --shots 2 --set train.epochs=1 --out m",
        "predict {model} {data}",
        "evaluate {model} {data} --resamples 200",
    ],
)
def test_memory_that_runs_out_is_one_message(line, megabytes, world, tmp_path):
    words = line.format(**world).split()
    done = harness.run(words, tmp_path, inside=short_of_memory(megabytes))
    assert done.problem is None, str(done)
    assert done.code == 0 or "not enough memory" in done.errors, str(done)
    assert megabytes or done.code == 2

from __future__ import annotations

import contextlib
import sys

import pytest

import ogkd.serve.models as loading
import ogkd.serve.server as serving
from ogkd.cli import main
from ogkd.errors import ConfigError
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decider
from ogkd.serve.models import Model
from ogkd.serve.server import Settings


@pytest.fixture
def refused(monkeypatch, capsys):
    """The message of `ogkd app ...` that must end in one message and code 2."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["ogkd", "app", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        output = capsys.readouterr()
        assert (stop.value.code, output.out) == (2, "")
        assert "Traceback" not in output.err
        return " ".join(output.err.replace("│", " ").split())

    return run


@pytest.fixture
def served(monkeypatch):
    """The settings that `ogkd app MODEL ...` would serve with."""
    calls = []
    monkeypatch.setattr(loading, "load_models", lambda *_, **__: [])
    monkeypatch.setattr(serving, "serve_models", lambda _, settings, say: calls.append(settings))

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["ogkd", "app", "model", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code
        return calls.pop()

    return run


def test_by_default_only_this_machine_is_served(served):
    settings = served()
    assert settings == Settings("127.0.0.1", None, 50_000_000)
    assert settings.token is None
    assert served("--max-mb", 3, "--port", 0) == Settings(port=0, max_bytes=3_000_000)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "myhost", "", "localhost.x"])
def test_other_machines_need_a_token_that_is_different_each_time(host):
    settings = Settings(host)
    assert settings.token == settings.token
    assert len(settings.token) >= 40
    assert settings.token != Settings(host).token
    assert serving.guarded([], settings).token == settings.token


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "LocalHost"])
def test_loopback_addresses_need_no_token(host):
    guard = serving.guarded([], Settings(host))
    assert guard.token is None
    assert guard.hosts == {"localhost", "127.0.0.1", "[::1]", host.lower()}


def test_a_missing_extra_is_named(refused, folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert 'pip install "ogkd[serve]"' in refused(folders / "gda")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gone"], "not a model folder"),
        (["gone", "--max-mb", "0"], "--max-mb"),
        (["gone", "--port", "70000"], "--port"),
        ([], "models"),
    ],
)
def test_invalid_options_are_refused(refused, words, message):
    assert message in refused(*words)


def test_a_port_in_use_is_refused_if_requested_and_skipped_if_not(monkeypatch):
    with contextlib.closing(serving._listen(Settings(port=0))) as first:
        used = first.getsockname()[1]
        with pytest.raises(ConfigError) as raised:
            serving._listen(Settings(port=used))
        assert raised.value.argument == "port"
        monkeypatch.setattr(serving, "_PORT", used)
        with contextlib.closing(serving._listen(Settings())) as second:
            assert second.getsockname()[1] > used


def test_an_address_of_another_machine_is_refused():
    # 192.0.2.0/24 is set aside for documentation: no machine has it.
    for host in ("no.such.host.invalid", "192.0.2.1"):
        with pytest.raises(ConfigError) as raised:
            serving._listen(Settings(host=host, port=0))
        assert raised.value.argument == "host"


def test_a_calibration_of_another_engine_is_noted_at_the_start(
    served, gda, by_hand, monkeypatch, capsys
):
    other = by_hand().model_copy(update={"engine": "bf16"})
    model = Model("gda", Decider(Classifier(gda.backbone, gda.head, gda.card, calibration=other)))
    monkeypatch.setattr(loading, "load_models", lambda *_, **__: [model])
    served()
    messages = capsys.readouterr().err
    assert "Loading 1 model(s)" in messages
    assert "Note on gda: " in messages

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace

import pytest

import ogkd.serve.models as loading
import ogkd.serve.server as serving
from ogkd.cli import main
from ogkd.cli.deploy import PageOptions
from ogkd.errors import ConfigError
from ogkd.serve import require_server
from ogkd.serve.server import Settings


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ([], Settings("127.0.0.1", None, 500_000_000)),
        (["--max-mb", "3", "--port", "0"], Settings(port=0, max_bytes=3_000_000)),
        (["--access-log"], Settings(access_log=True)),
    ],
)
def test_by_default_only_this_machine_is_served(monkeypatch, words, settings):
    calls = []
    decider = SimpleNamespace(notes=())
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: loading.Model("m", decider))
    monkeypatch.setattr(serving, "serve_model", lambda _, settings, ready: calls.append(settings))
    monkeypatch.setattr(sys, "argv", ["ogkd", "app", "model", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert (stop.value.code or 0, calls, calls[0].token) == (0, [settings], None)


def test_a_second_model_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ogkd", "app", "model", "other"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "other" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "myhost", "", "localhost.x"])
def test_other_machines_need_a_token_that_is_different_each_time(host):
    settings = Settings(host)
    assert len(settings.token) >= 40
    assert settings.token == settings.token == serving.guarded([], settings).token
    assert settings.token != Settings(host).token


def test_a_given_token_counts_on_every_host_and_is_not_printed(monkeypatch, capsys):
    monkeypatch.setenv("OGKD_TOKEN", token := "0123456789-abcdef")
    assert {Settings(host).token for host in ("127.0.0.1", "0.0.0.0")} == {token}
    PageOptions().announce("Serving", f"http://0.0.0.0:1/?token={token}")
    assert token not in capsys.readouterr().out
    monkeypatch.setenv("OGKD_TOKEN", "short")
    with pytest.raises(ConfigError):
        PageOptions().settings()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "LocalHost"])
def test_loopback_addresses_need_no_token(host):
    guard = serving.guarded([], Settings(host))
    assert guard.token is None
    assert guard.hosts == {"localhost", "127.0.0.1", "[::1]", host.lower()}


def test_a_missing_extra_is_refused(monkeypatch):
    require_server()
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ConfigError):
        require_server()


def test_a_port_in_use_is_refused_if_requested_and_skipped_if_not(monkeypatch):
    with contextlib.closing(serving._listen(Settings(port=0))) as first:
        used = first.getsockname()[1]
        with pytest.raises(ConfigError) as raised:
            serving._listen(Settings(port=used))
        assert raised.value.argument == "port"
        monkeypatch.setattr(serving, "_PORT", used)
        with contextlib.closing(serving._listen(Settings())) as second:
            assert second.getsockname()[1] != used


# 192.0.2.0/24 is set aside for documentation: no machine has it.
@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_an_address_of_another_machine_is_refused(host):
    with pytest.raises(ConfigError) as raised:
        serving._listen(Settings(host=host))
    assert raised.value.argument == "host"

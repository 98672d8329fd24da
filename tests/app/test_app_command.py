from __future__ import annotations

import contextlib
import errno
import socket
import sys

import pytest
import typer
from app_models import by_hand

import ogkd.app.models as loading
import ogkd.app.server as serving
from ogkd.app.models import Model
from ogkd.app.server import Settings, is_loopback
from ogkd.app.web import Line
from ogkd.cli import main
from ogkd.errors import ConfigError
from ogkd.images.decode import MAX_PIXELS
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decider


@pytest.fixture
def refused(monkeypatch, capsys):
    """The message of `ogkd app ...` that must end in one message and code 2."""
    monkeypatch.setattr(serving, "require_server", lambda: None)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["ogkd", "app", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        said = capsys.readouterr()
        assert (stop.value.code, said.out) == (2, "")
        assert "Traceback" not in said.err
        return " ".join(said.err.replace("│", " ").split())

    return run


@pytest.fixture
def served(monkeypatch):
    """The settings that `ogkd app MODEL ...` would serve with."""
    found = []
    monkeypatch.setattr(serving, "require_server", lambda: None)
    monkeypatch.setattr(loading, "load_models", lambda *_, **__: [])
    monkeypatch.setattr(serving, "serve_models", lambda _, settings, say: found.append(settings))

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["ogkd", "app", "model", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code
        return found.pop()

    return run


def test_by_default_only_this_machine_is_served(served):
    assert served() == Settings("127.0.0.1", None, None, 50_000_000, 50_000_000)
    assert served("--max-mb", 3, "--max-pixels", "2e6", "--port", 0) == Settings(
        port=0, max_bytes=3_000_000, max_pixels=2_000_000
    )


def test_what_is_being_loaded_is_said_before_it_is_loaded(served, monkeypatch, capsys):
    said = []
    monkeypatch.setattr(serving, "require_server", lambda: said.append(capsys.readouterr().err))
    monkeypatch.setattr(
        loading, "load_models", lambda *_, **__: said.append(capsys.readouterr().err) or []
    )
    served()
    assert said == [
        "Starting the page for model: loading torch ...\n",
        "Loading 1 model(s) and their backbones ...\n",
    ]


def test_another_address_needs_a_password(refused, served, folders, monkeypatch):
    monkeypatch.delenv("OGKD_APP_PASSWORD", raising=False)
    for host in ("0.0.0.0", "192.168.1.5", "::", "myhost"):
        assert "OGKD_APP_PASSWORD" in refused(folders / "gda", "--host", host)
    monkeypatch.setenv("OGKD_APP_PASSWORD", "short")
    assert "at least 8" in refused(folders / "gda", "--host", "0.0.0.0")
    monkeypatch.setenv("OGKD_APP_PASSWORD", "long enough")
    assert served("--host", "0.0.0.0").password == "long enough"
    assert served("--host", "127.0.0.2").password is None


def test_a_terminal_is_asked_for_the_password(served, monkeypatch):
    asked = {}
    monkeypatch.delenv("OGKD_APP_PASSWORD", raising=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "prompt", lambda *_, **how: asked.update(how) or "from a prompt")
    assert served("--host", "0.0.0.0").password == "from a prompt"
    assert asked == {"hide_input": True, "confirmation_prompt": True}


def test_without_a_password_the_server_itself_refuses_other_addresses():
    with pytest.raises(ConfigError, match="needs a password"):
        serving.serve_models([], Settings(host="0.0.0.0"), say=print)


def test_without_the_extra_the_message_says_what_to_install(refused, folders, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert 'pip install "ogkd[serve]"' in refused(folders / "gda")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gone"], "not a model folder"),
        (["gone", "--max-mb", "0"], "--max-mb must be a positive number"),
        (["gone", "--max-pixels", "nan"], "--max-pixels must be a positive number"),
        (["gone", "--max-pixels", "100000001"], "--max-pixels is at most 100,000,000"),
        (["gone", "--port", "70000"], "--port"),
        ([], "models"),
    ],
)
def test_what_cannot_be_served_is_refused(refused, words, message):
    assert message in refused(*words).lower() or message in refused(*words)


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("LocalHost", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "example.com", "", "localhost.x")],
)
def test_what_counts_as_this_machine(host, own):
    assert is_loopback(host) is own


def test_a_port_that_is_taken_is_refused_if_asked_for_and_passed_over_if_not(monkeypatch):
    with contextlib.closing(serving._listen(Settings(port=0))) as first:
        taken = first.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {taken}.*another port"):
            serving._listen(Settings(port=taken))
        monkeypatch.setattr(serving, "_PORT", taken)
        with contextlib.closing(serving._listen(Settings())) as second:
            assert second.getsockname()[1] > taken
        assert serving._address(first) == f"http://127.0.0.1:{taken}"
    with pytest.raises(ConfigError, match="Cannot serve"):
        serving._listen(Settings(host="no.such.host.invalid", port=0))


def test_only_a_taken_port_makes_it_try_the_next(monkeypatch):
    tried = []

    def bound(address, **_):
        tried.append(address[1])
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", bound)
    with pytest.raises(ConfigError, match=r"at 192\.0\.2\.1, .*an address of this machine"):
        serving._listen(Settings(host="192.0.2.1", password="long enough"))
    assert len(tried) == 1


def test_an_address_of_another_machine_is_named():
    # 192.0.2.0/24 is set aside for documentation: no machine has it.
    with pytest.raises(ConfigError, match=r"Cannot serve at 192\.0\.2\.1"):
        serving._listen(Settings(host="192.0.2.1", password="long enough"))


def test_the_most_pixels_that_may_be_asked_for_are_those_that_are_read(served):
    assert served("--max-pixels", "100e6").max_pixels == MAX_PIXELS


def test_a_calibration_of_another_engine_is_told_at_the_start(served, gda, monkeypatch, capsys):
    made = by_hand().model_copy(update={"engine": "int8"})
    model = Model("gda", Decider(Classifier(gda.backbone, gda.head, gda.card, calibration=made)))
    monkeypatch.setattr(loading, "load_models", lambda *_, **__: [model])
    served()
    said = capsys.readouterr().err
    assert "Note on gda: The calibration was made with the encoder engine int8" in said


def test_while_it_serves_nothing_in_the_process_can_connect():
    with socket.create_server(("127.0.0.1", 0)) as listener, serving.refuse_connections():
        place = listener.getsockname()
        socket.create_connection(place, timeout=60).close()  # it does not serve yet
        serving._serving.set()
        with (
            socket.socket() as caller,
            pytest.raises(ConnectionRefusedError, match="opens no connections"),
        ):
            caller.connect(place)
        with pytest.raises(ConnectionRefusedError):
            socket.getaddrinfo("example.com", 80)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        socket.create_connection(listener.getsockname(), timeout=60).close()


def test_the_uploads_folder_is_private_and_goes_away():
    with serving._private_folder() as folder:
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "x").write_bytes(b"x")
    assert not folder.exists()


def test_a_page_without_a_password_answers_to_this_machine_s_names_alone():
    open_to_all = serving.guarded(None, Settings(host="127.0.0.2"), Line(1))
    assert open_to_all.password is None
    assert open_to_all.hosts == {"localhost", "127.0.0.1", "127.0.0.2", "[::1]"}
    closed = Settings(host="0.0.0.0", password="long enough")
    assert serving.guarded(None, closed, Line(1)).password == "long enough"

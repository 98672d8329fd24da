"""Notes of the library: logging under `ogkd.*`."""

from __future__ import annotations

import logging

import ogkd
from ogkd.notes import notes_to


def test_notes_go_where_they_are_asked_for_and_then_where_they_went_before(caplog):
    log, lines = logging.getLogger("ogkd.fit"), []
    with notes_to(lines.append):
        log.warning("A")
        log.info("B")
    log.warning("C")
    log.info("D")  # not shown unless logging is set up
    assert lines == ["A", "B"]
    assert caplog.messages == ["C"]


def test_what_has_failed_is_printed_even_where_notes_are_dropped(capsys):
    with notes_to(lambda line: None):
        logging.getLogger("ogkd.serve").error("A request failed.")
    assert "A request failed." in capsys.readouterr().err


def test_templates_in_place_of_a_bank_are_heard_in_python(caplog):
    ogkd.zero_shot(["cyst", "mass"], backbone="builtin")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "templates" in caplog.messages[0]

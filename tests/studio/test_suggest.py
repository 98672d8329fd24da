from __future__ import annotations

import pytest

from ogkd.errors import DataError
from ogkd.serve.studio import label_next
from ogkd.serve.studio.images import match_paths


def test_without_labels_the_first_are_of_different_kinds_and_readable(pile):
    notes = []
    images = label_next(pile, n=6, backbone="builtin", say=notes.append)
    assert len(set(images)) == 6
    assert "broken.png" not in {image.file.name for image in images}
    assert any("cannot be read" in note for note in notes)


def test_what_has_a_label_is_not_asked_for(pile, tmp_path):
    done = [image.file for image in label_next(pile, n=8, backbone="builtin")]
    rows = [f"{file},{'ab'[number % 2]}" for number, file in enumerate(done)]
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(["path,label", *rows]))
    images = label_next(pile, labels=table, n=50, backbone="builtin")
    assert not {image.file for image in images} & set(done)
    assert len(images) == 34 - 8  # all others that can be read


def test_labels_of_another_folder_are_refused(pile, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("path,label\nx.png,a\ny.png,b\n")
    with pytest.raises(DataError) as raised:
        label_next(pile, labels=table, backbone="builtin")
    assert raised.value.argument == "labels"


def test_a_folder_without_a_readable_image_is_refused_in_words(tmp_path):
    (tmp_path / "a.png").write_text("text")
    with pytest.raises(DataError):
        label_next(tmp_path, backbone="builtin")


def test_paths_of_a_table_are_matched_by_their_longest_common_end():
    known = ["../x/a/1.png", "../x/b/1.png", "../x/c.png"]
    paths = ["/data/b/1.png", "c.png", "1.png", "none.png"]
    assert match_paths(paths, known) == [1, 2, None, None]  # two images have the name 1.png

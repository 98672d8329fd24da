from __future__ import annotations

import json

import pytest

from ogkd.errors import DataError
from ogkd.studio.importing import Found, match, read_labels


def written(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_table_gives_names_labels_and_patients(tmp_path):
    text = "path,label,patient\nx/a.png,benign,p1\nb.png,malignant,p2\n"
    assert read_labels(written(tmp_path / "l.csv", text)) == [
        Found("x/a.png", "benign", "p1"),
        Found("b.png", "malignant", "p2"),
    ]


def task(image, *choices, cancelled=False):
    result = [{"type": "choices", "value": {"choices": list(choices)}}] if choices else []
    return {
        "data": {"image": image},
        "annotations": [{"result": result, "was_cancelled": cancelled}],
    }


def test_label_studio_s_tasks_are_read(tmp_path):
    tasks = [
        task("/data/upload/1/1f2e3d4c-a%20b.png", "benign"),
        task("/data/local-files/?d=scans/c.png", "malignant"),
        task("https://host/d.png", "benign", "malignant"),  # two answers are no label
        task("/e.png"),
        task("/f.png", "benign", cancelled=True),
    ]
    assert read_labels(written(tmp_path / "l.json", tasks)) == [
        Found("/data/upload/1/a b.png", "benign"),
        Found("scans/c.png", "malignant"),
    ]


def test_label_studio_s_short_form_is_read(tmp_path):
    rows = [{"image": "/data/upload/1/aaaaaaaa-x.png", "choice": "benign", "id": 1}]
    assert read_labels(written(tmp_path / "l.json", rows)) == [
        Found("/data/upload/1/x.png", "benign")
    ]


def test_coco_s_annotations_are_read_where_an_image_has_one_class(tmp_path):
    coco = {
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}],
        "categories": [{"id": 7, "name": "benign"}, {"id": 9, "name": "malignant"}],
        "annotations": [
            {"image_id": 1, "category_id": 7},
            {"image_id": 1, "category_id": 7, "bbox": [0, 0, 1, 1]},
            {"image_id": 2, "category_id": 7},
            {"image_id": 2, "category_id": 9},
        ],
    }
    assert read_labels(written(tmp_path / "l.json", coco)) == [Found("a.png", "benign")]


CHOICE = [{"type": "choices", "value": {"choices": ["benign"]}}]
NAMELESS = json.dumps([{"data": {}, "annotations": [{"result": CHOICE}]}])


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "{}", "[1]", '{"images": 3}', '[{"data": {}, "annotations": [{}]}]', NAMELESS],
)
def test_another_file_is_refused_in_words(tmp_path, content):
    with pytest.raises(DataError, match=r"l\.json"):
        read_labels(written(tmp_path / "l.json", content))


def test_names_are_matched_by_the_longest_common_end_of_their_paths():
    known = ["../x/a/1.png", "../x/b/1.png", "../x/c.png"]
    found = [Found(name, "k") for name in ("/data/b/1.png", "c.png", "1.png", "none.png")]
    pairs, lost = match(found, known)
    assert [(number, one.name) for number, one in pairs] == [(1, "/data/b/1.png"), (2, "c.png")]
    assert lost == ["1.png", "none.png"]  # two images have that name; none has

"""The whole command over its own socket, as a browser or a program meets it."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from app_client import record
from PIL import Image

from ogkd.model.classifier import load
from tiny_images import dicom

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "app.md"


@pytest.fixture(scope="session")
def cyst(phantoms):
    return phantoms / "test" / "simple_cyst" / "0000.png"


def png(height, width):
    memory = io.BytesIO()
    Image.fromarray(np.zeros((height, width), np.uint8)).save(memory, "PNG")
    return memory.getvalue()


def test_every_model_answers_as_the_library_does(server, folders, cyst):
    found = server.classify(cyst.read_bytes(), cyst.name)
    assert [answer["model"] for answer in found["models"]] == ["gda", "zero"]
    assert found["image"] == {"name": cyst.name, "width": 128, "height": 128, "note": ""}
    assert "not for autonomous clinical use" in found["caution"]
    for answer in found["models"]:
        model = load(folders / answer["model"])
        expected = dict(zip(model.class_names, model.predict_proba([cyst])[0], strict=True))
        assert answer["probabilities"] == pytest.approx(expected, abs=1e-4)
        assert answer["prediction"] == max(expected, key=expected.get)
    gda, zero = found["models"]
    assert (gda["calibrated"], zero["calibrated"], zero["conformal_set"]) == (True, False, None)
    assert gda["similar"][0]["class"] == "simple cyst"
    assert "data:image" not in json.dumps(found)


def test_an_image_of_another_kind_is_told_to_be_uncertain(server, stranger):
    gda = server.classify(stranger.read_bytes())["models"][0]
    assert gda["uncertain"]
    assert any("unlike" in reason for reason in gda["reasons"])


def test_a_dicom_file_is_answered(server, tmp_path, cyst):
    gray = np.asarray(Image.open(cyst))[:, :, 0]
    file = dicom(tmp_path / "a.dcm", gray)
    found = server.classify(file.read_bytes(), "IM0001", pictures=True)
    expected = server.classify(cyst.read_bytes())
    assert found["models"][0]["probabilities"] == expected["models"][0]["probabilities"]
    assert found["models"][0]["evidence"].startswith("data:image/jpeg;base64,")


def test_equal_images_at_the_same_time_are_all_answered_and_none_is_kept(server, cyst):
    content = cyst.read_bytes()
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda _: server.classify(content), range(12)))
    assert all(answer == found[0] for answer in found)
    assert server.waiting() == []


def test_a_file_that_is_no_image_is_told_in_words(server):
    told = server.classify(b"this is text", "scan.png")
    assert told["error"] == "The file is not a PNG, JPEG or DICOM image. Choose another."
    assert server.waiting() == []


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(server):
    assert "more than the limit of 300,000" in server.classify(png(600, 501))["error"]


def test_a_file_of_too_many_bytes_is_refused(server):
    reply = server.upload(bytes(3_000_000))
    assert (reply.status, "2 MB" in reply.json["detail"]) == (413, True)
    assert server.upload(bytes(2_000_001)).status == 413
    assert server.waiting() == []


def test_a_request_cannot_name_a_file_of_the_server_nor_an_address(server, cyst, folders):
    upload = server.upload(cyst.read_bytes()).json[0]
    others = [str(cyst), "/etc/passwd", f"{upload}/../../../etc/passwd", str(folders)]
    others += ["http://127.0.0.1/a.png", "https://example.com/a.png", f"{upload}x", ""]
    told = [server.call(record(place), False) for place in others]
    shapes = [str(cyst), {"path": str(cyst)}, [upload], 7, {"path": upload, "url": "http://x.y/a"}]
    told += [server.call(shape, False) for shape in shapes]
    told += [server.call(), server.call(record(upload)), server.call(record(upload), True, 3)]
    for answer in told:
        assert "pload" in answer["error"], answer
    assert server.call(None, False)["error"] == "No image was given. Upload one first."
    assert "models" in server.call(record(upload), False)
    assert "used once" in server.call(record(upload), False)["error"]


def test_no_file_is_served(server, cyst):
    upload = server.upload(cyst.read_bytes()).json[0]
    names = ["/etc/passwd", "../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", str(cyst), upload]
    for name in names:
        for route in ("/gradio_api/file=", "/file=", "/gradio_api/file/", "/static/", "/assets/"):
            assert server.request("GET", route + name).status in (403, 404)
    server.call(record(upload), False)


def test_other_sites_and_other_names_are_refused(server):
    host = server.address.partition("//")[2]
    assert server.request("GET", "/").status == 200
    assert server.request("GET", "/", Host="evil.example").status == 403
    assert server.upload(b"x", Origin="http://evil.example").status == 403
    assert server.upload(b"x", Origin="null").status == 403
    assert server.upload(png(4, 4), Origin=f"http://{host}").status == 200
    config = server.request("GET", "/config", Origin=f"http://{host}")
    assert "access-control-allow-origin" not in config.headers


def test_the_page_tells_nothing_of_the_server_s_disk(server, folders):
    for path in ("/", "/config", "/gradio_api/info"):
        reply = server.request("GET", path)
        assert reply.status == 200
        assert str(server.temp).encode() not in reply.body
        assert str(folders).encode() not in reply.body
    assert server.request("GET", "/config").json["analytics_enabled"] is False


def test_uploads_without_a_file_are_refused_in_words(server):
    kind = {"Content_Type": "multipart/form-data; boundary=x"}
    for body in (b"", b"--x--\r\n", b"nonsense", b'{"a": 1}'):
        reply = server.request("POST", "/gradio_api/upload", body, **kind)
        assert (reply.status, "files" in reply.json["detail"]) == (400, True)
    assert server.request("POST", "/gradio_api/upload", b"{}").status == 400


def test_nothing_but_the_one_endpoint_can_be_called(server):
    body = json.dumps({"data": []}).encode()
    for path in ("call/ask", "run/classify", "call/lambda"):
        reply = server.request("POST", f"/gradio_api/{path}", body, Content_Type="application/json")
        assert reply.status == 404
    assert list(server.request("GET", "/gradio_api/info").json["named_endpoints"]) == ["/classify"]


def examples(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_curl_example_of_the_docs_works(server, cyst, tmp_path):
    if subprocess.run(["which", "curl"], capture_output=True).returncode:
        pytest.skip("curl is not installed")
    (example,) = [text for text in examples("sh") if "curl" in text]
    script = example.replace("http://127.0.0.1:7860", server.address)
    (tmp_path / "scan.png").write_bytes(cyst.read_bytes())
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.strip().splitlines()[-1].removeprefix("data: "))[0]
    assert answer == server.classify(cyst.read_bytes(), "scan.png")


def test_the_python_example_of_the_docs_works(server, cyst, tmp_path):
    (example,) = [text for text in examples("python") if "gradio_client" in text]
    script = example.replace("http://127.0.0.1:7860", server.address)
    (tmp_path / "scan.png").write_bytes(cyst.read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "gda simple cyst" in done.stdout

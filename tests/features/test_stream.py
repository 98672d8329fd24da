from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open

from ogkd.features.encode import SafetensorsStream


@pytest.mark.parametrize("batches", [[3, 2], [1], []])
def test_rows_written_one_by_one_are_read_back_by_safetensors(tmp_path, batches):
    rows = [torch.randn(count, 4, 5) for count in batches]
    small = torch.randn(sum(batches), 5)
    files = json.dumps([f"ünï {index}.png" for index in range(sum(batches))])
    path = tmp_path / "a.safetensors"
    with SafetensorsStream(path.open("wb"), "patches", header_room=len(json.dumps(files))) as out:
        for row in rows:
            out.append(row)
        out.finish({"globals": small}, {"files": files})
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"files": files}
        assert torch.equal(file.get_tensor("globals"), small)
        if rows:
            assert torch.equal(file.get_tensor("patches"), torch.cat(rows))
        else:
            assert list(file.keys()) == ["globals"]

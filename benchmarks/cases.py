"""Cases: one answer for many images, as fewer and fewer of them show it; docs/evidence/cases.md.

    python benchmarks/cases.py --out runs/cases --data us-breast             # phantom volumes
    python benchmarks/cases.py --out runs/cases --data lungcolon             # needs OGKD_SHARED
    python benchmarks/cases.py --out runs/cases --data knees                 # needs OGKD_SHARED
    python benchmarks/cases.py --out runs/cases --table

A case has 30 images: slices of a phantom volume of one anatomy (ogkd.data.phantoms.volumes),
or tiles of one organ drawn from LungColon (training cases from the images of train and val, test
cases from those of test). `images`: all images are labelled; `cases`: only cases are. Middle,
mean and max use the same head as `ours`; mean and max have a factor and biases too, fitted on the
same held-out cases, but subtract nothing. ABMIL is gated attention on global features (Ilse et al.,
ICML 2018). What is in --out is not run again. `knees`: films of KneeXray by patient, who has the
grade of the worse knee; the films of a patient are a case, or each is graded alone and the worse
grade is the answer.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ogkd.backbones import Backbone, load_backbone
from ogkd.backbones.base import ImageFeatures
from ogkd.core import pooling
from ogkd.data.phantoms import draw, phantom
from ogkd.data.read import read_dataset
from ogkd.data.tasks import OneOf
from ogkd.features.encode import encode_crops
from ogkd.features.store import FeatureStore
from ogkd.features.views import FixedViews
from ogkd.files import write_json
from ogkd.fitting.cases import CaseSupport, _fit_head, _held_out, learn
from ogkd.fitting.prepare import text_sides
from ogkd.images.transforms import center_crop
from ogkd.methods import Support, TextSide, make_method
from ogkd.prompts.bank import read_bank, shipped_banks

SHARED = Path(os.environ.get("OGKD_SHARED") or Path(__file__).parents[2] / "shared")
IMAGES = 30
AFFECTED = (15, 6, 3, 1)  # of 30: 50, 20, 10 and 3 %
SEED = 1  # of the phantoms
ORGANS = ("lung", "colon")

Cases = tuple[Tensor, Tensor, Tensor, Tensor]  # rows, case of each, labels of cases, what rows show


def phantom_rows(name: str, split: int, label: int, index: int, backbone: Backbone) -> Tensor:
    """Features [30 + 15, w] of one volume: slices without and then with the finding."""
    normal = phantom(name).normal
    entropy = [zlib.crc32(f"{name} volume".encode()), label, SEED, index, split]
    _, scene, *textures = np.random.SeedSequence(entropy).spawn(2 + IMAGES + AFFECTED[0])
    shown = [normal] * IMAGES + [label] * AFFECTED[0]
    crops = []
    for which, texture in zip(shown, textures, strict=True):
        gray = draw(name, which, scene, texture, 160).image.mean(axis=2).round()
        pixels = np.repeat(gray.astype(np.uint8)[:, :, None], 3, axis=2)
        crops.append(center_crop(pixels, backbone.preprocessing))
    return encode_crops(backbone, crops, patches=False, deep=True).rows.half()


def phantom_cases(
    name: str, folder: Path, split: int, count: int, affected: int, backbone: Backbone
) -> Cases:
    place = folder / f"{name}-{split}-{count}.npy"
    classes = phantom(name).class_names
    if not place.is_file():
        rows = [
            phantom_rows(name, split, label, index, backbone).numpy()
            for label in range(len(classes))
            for index in range(count)
        ]
        np.save(place, np.stack(rows))
    stored = torch.from_numpy(np.load(place)).float()  # [C * count, 45, w]
    normal = phantom(name).normal
    labels = torch.arange(len(classes)).repeat_interleave(count)
    rows, shows = [], []
    for number, label in enumerate(labels.tolist()):
        ill = affected if label != normal else 0
        order = torch.from_numpy(np.random.default_rng([split, number]).permutation(IMAGES))
        mine = torch.cat([stored[number, : IMAGES - ill], stored[number, IMAGES:][:ill]])
        rows.append(mine[order])
        shows.append(torch.tensor([normal] * (IMAGES - ill) + [label] * ill)[order])
    case = torch.arange(len(labels)).repeat_interleave(IMAGES)
    return torch.cat(rows), case, labels, torch.cat(shows)


def slide_cases(splits: tuple[str, ...], count: int, affected: int, store: FeatureStore) -> Cases:
    """Slides of one organ each: benign tiles, and tiles of the slide's own class among them."""
    dataset = read_dataset(SHARED / "data" / "LungColon")
    names = dataset.names
    cases = [case for case in dataset.cases if case.split in splits]
    features = store.get([case.image for case in cases], deep=True).rows[:, 0].float()
    of = {
        c: torch.tensor([row for row, case in enumerate(cases) if case.target == c])
        for c in range(len(names))
    }
    benign = {
        organ: next(c for c, name in enumerate(names) if organ in name and "benign" in name)
        for organ in ORGANS
    }
    rows, shows, labels = [], [], []
    for label, name in enumerate(names):
        normal = benign[next(organ for organ in ORGANS if organ in name)]
        for index in range(count):
            rng = np.random.default_rng([zlib.crc32(splits[0].encode()), label, index])
            ill = affected if label != normal else 0
            shown = [normal] * (IMAGES - ill) + [label] * ill
            drawn = [
                *rng.choice(of[normal].numpy(), IMAGES - ill, replace=False),
                *rng.choice(of[label].numpy(), ill, replace=False),
            ]
            order = rng.permutation(IMAGES)
            rows.append(features[torch.tensor(drawn)[order]])
            shows += [shown[place] for place in order]
            labels.append(label)
    case = torch.arange(len(labels)).repeat_interleave(IMAGES)
    return torch.cat(rows), case, torch.tensor(labels), torch.tensor(shows)


class ABMIL(nn.Module):
    """Gated attention over the images of a case, then one linear layer."""

    def __init__(self, width: int, classes: int, hidden: int = 128, attention: int = 64) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(0.25))
        self.V, self.U = nn.Linear(hidden, attention), nn.Linear(hidden, attention)
        self.w, self.out = nn.Linear(attention, 1), nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:  # [B, 30, d] -> [B, C]
        h = self.embed(x)
        a = self.w(self.V(h).tanh() * self.U(h).sigmoid()).softmax(1)
        logits: Tensor = self.out((a * h).sum(1))
        return logits


def abmil(train: Cases, test: Cases, width: int, classes: int, seed: int) -> Tensor:
    """Logits of test cases; 200 epochs of full batches, Adam, weight decay."""
    torch.manual_seed(seed)
    x, y = (cases[0][:, :width].unflatten(0, (-1, IMAGES)) for cases in (train, test))
    scale = x.flatten(0, 1).std(0).clamp_min(1e-6)
    centre = x.flatten(0, 1).mean(0)
    model = ABMIL(width, classes)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3)
    for _ in range(200):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model((x - centre) / scale), train[2])
        loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        found: Tensor = model((y - centre) / scale)
    return found


def judge(z: Tensor, labels: Tensor) -> dict[str, float]:
    right = (z.argmax(1) == labels).double().mean()
    return {"accuracy": float(right), "nll": float(nn.functional.cross_entropy(z, labels))}


def run(train: Cases, test: Cases, text: TextSide, seed: int) -> dict[str, Any]:
    """Every way to answer the test cases, with labels of images and with those of cases alone."""
    rows, case, labels, shows = train
    d = text.backbone.embed_dim
    views = FixedViews(ImageFeatures(rows[:, None, :d], None, rows[:, None, d:]))
    support = Support(views, labels[case], case=case)
    found: dict[str, Any] = {}
    every, common, method = pooling.TAUS, pooling.common_part, make_method("fused")
    for kind, known in (("images", shows), ("cases", None)):
        given = CaseSupport(support, rows, case, labels, known)
        began = time.process_time()
        head, held = _fit_head(method, given, text, seed), _held_out(method, given, text, seed)
        ways = {"ours": pooling.Pooling(normal=text.normal)}
        if held is not None:
            ways["ours"] = pooling.fit_pooling(held, case, labels, text.normal)
        seconds = time.process_time() - began
        z = head.of_rows(test[0]).double()
        if held is not None:
            pooling.common_part = lambda z, case: z.new_zeros(int(case.max()) + 1, z.shape[1])
            for name, tau in {"mean": math.inf, "max": 0.0}.items():
                pooling.TAUS = (tau,)
                ways[name] = pooling.fit_pooling(held, case, labels, text.normal)
            pooling.TAUS, pooling.common_part = every, common
        for name, how in ways.items():
            tau = None if math.isinf(how.tau) else how.tau
            found[f"{kind}/{name}"] = judge(how.logits(z, test[1]), test[2]) | {"tau": tau}
        found[f"{kind}/ours"]["seconds"] = seconds
        middle = z.unflatten(0, (-1, IMAGES))[:, IMAGES // 2]
        found[f"{kind}/middle"] = judge(middle, test[2])
    found["cases/abmil"] = judge(abmil(train, test, d, len(text.class_names), seed), test[2])
    return found


def run_all(data: str, out: Path, shots: list[int], test_cases: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    real = data == "lungcolon"
    backbone = load_backbone(SHARED / "backbones" / "dinov2s14-minilm-med" if real else "builtin")
    store = FeatureStore(backbone)
    for affected in AFFECTED:
        for k in shots:
            place = out / f"{data}-{affected}-{k}.json"
            if place.is_file():
                continue
            if real:
                names = read_dataset(SHARED / "data" / "LungColon").names
                normal = [c for c, name in enumerate(names) if "benign" in name]
                bank = read_bank(shipped_banks()["lungcolon"])
                train = slide_cases(("train", "val"), k, affected, store)
                test = slide_cases(("test",), test_cases, affected, store)
            else:
                names, bank = phantom(data).class_names, None
                normal = [phantom(data).normal]
                train = phantom_cases(data, out, 0, max(shots), affected, backbone)
                few = (torch.arange(len(train[2])) % max(shots)) < k
                kept = few[train[1]]
                numbers = few.long().cumsum(0) - 1
                train = (*(train[0][kept], numbers[train[1][kept]], train[2][few], train[3][kept]),)
                test = phantom_cases(data, out, 2, test_cases, affected, backbone)
            text = text_sides(backbone, OneOf(tuple(names), tuple(normal)), bank)[0]
            write_json(place, run(train, test, text, seed=1))
            print(place, flush=True)


def run_knees(out: Path) -> None:
    """Patients of KneeXray, whose files are named PATIENT and L or R; a few have both knees."""
    backbone = load_backbone(SHARED / "backbones" / "dinov2s14-minilm-med")
    store, dataset = FeatureStore(backbone), read_dataset(SHARED / "data" / "KneeXray")
    order = ["healthy", "doubtful", "minimal", "moderate", "severe"]
    rank = [order.index(name.split()[0]) for name in dataset.names]
    task = OneOf(dataset.names, (rank.index(0),))
    texts = text_sides(backbone, task, read_bank(shipped_banks()["kneexray"]))
    parts: dict[str, Cases] = {}
    for split in ("train", "test"):
        cases = sorted(
            (case for case in dataset.cases if case.split == split),
            key=lambda case: case.image.file.stem,
        )
        patients = [one.image.file.stem[:-1] for one in cases]
        number = {name: place for place, name in enumerate(dict.fromkeys(patients))}
        case = torch.tensor([number[name] for name in patients])
        targets = dataset.targets(cases)
        shows = torch.tensor(targets)
        worse = [
            max((targets[n] for n in (case == b).nonzero()[:, 0].tolist()), key=rank.__getitem__)
            for b in range(len(number))
        ]
        rows = store.get([case.image for case in cases], deep=True).rows[:, 0].float()
        parts[split] = rows, case, torch.tensor(worse), shows
    (rows, case, labels, shows), (z_rows, z_case, truth, _) = parts["train"], parts["test"]
    d, method = backbone.embed_dim, make_method("fused")
    views = FixedViews(ImageFeatures(rows[:, None, :d], None, rows[:, None, d:]))
    both = torch.bincount(z_case) == 2
    alone = method.fit(Support(views, shows), texts[0], seed=1)
    graded = alone.of_rows(z_rows).argmax(1).tolist()
    said = [
        max((graded[n] for n in (z_case == b).nonzero()[:, 0].tolist()), key=rank.__getitem__)
        for b in range(len(truth))
    ]
    answers = {"knee by knee": torch.tensor(said)}
    for name, known in (("cases, grades of knees", shows), ("cases, grades of patients", None)):
        support = Support(views, labels[case], case=case)
        given = CaseSupport(support, rows, case, labels, known)
        head, (how,) = learn(method, given, task, texts, seed=1)
        answers[name] = how.logits(head.of_rows(z_rows).double(), z_case).argmax(1)
    found = {
        name: {
            "all": float((one == truth).double().mean()),
            "two knees": float((one == truth)[both].double().mean()),
        }
        for name, one in answers.items()
    }
    counts = {"patients": len(truth), "with two knees": int(both.sum()), "to learn": len(labels)}
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "knees.result", found | counts)
    print(json.dumps(found | counts))


def table(out: Path) -> None:
    ways = ("middle", "mean", "max", "ours")
    columns = [*(f"images/{way}" for way in ways), *(f"cases/{way}" for way in ways), "cases/abmil"]
    print("| data | cases per class | affected |", " | ".join(columns), "|")
    print("|" + "---|" * (3 + len(columns)))
    for place in sorted(out.glob("*.json"), key=_order):
        data, affected, k = place.stem.rsplit("-", 2)
        found = json.loads(place.read_text())
        cells = [f"{100 * found[column]['accuracy']:.1f}" for column in columns]
        print(f"| {data} | {k} | {100 * int(affected) / IMAGES:.0f} % |", " | ".join(cells), "|")


def _order(place: Path) -> tuple[str, int, int]:
    data, affected, k = place.stem.rsplit("-", 2)
    return data, int(k), -int(affected)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", nargs="*", default=["us-breast", "lungcolon"])
    parser.add_argument("--shots", nargs="*", type=int, default=[4, 16])
    parser.add_argument("--test-cases", type=int, default=16)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        table(options.out)
        return
    for data in options.data:
        if data == "knees":
            run_knees(options.out)
            continue
        run_all(data, options.out, options.shots, options.test_cases)


if __name__ == "__main__":
    main()

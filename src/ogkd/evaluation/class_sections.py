"""What an evaluation of classes says, section by section."""

from __future__ import annotations

import math

import numpy as np

from ogkd.evaluation.names import METRICS
from ogkd.evaluation.sections import (
    Chart,
    Dot,
    Line,
    Section,
    Table,
    Values,
    cell,
    interval_text,
    join_words,
    metric_row,
    name_columns,
    percent,
)
from ogkd.evaluation.subgroups import subgroups

_PAIRS = 3  # confusions that are named
_HONEST = 0.05  # how far mean confidence may be off and still count as about right
_SCREENING = {
    "Sensitivity": "share of images with a finding that are flagged",
    "Specificity": "share of images without a finding that are not flagged",
    "AUROC": "finding against no finding, at any threshold: 1 - p(normal) is the score",
}
_OF_CLASS = ("recall", "precision", "specificity", "F1", "AUROC")
_NOT_CALIBRATED = (
    "The model was not calibrated: its probabilities come straight from training. The command ogkd "
    "calibrate corrects them with images that the model has not learned from, if those show that "
    "it helps."
)
_SETS = {  # kinds of sets: what they are guaranteed for ("": nothing), what they need
    "lac": (
        "for images like those it was calibrated on (LAC), and on average over images, not for "
        "each class",
        "calibration images",
    ),
    "support": (
        "for images drawn like those it learned from, each of another patient, and holds for each "
        "class",
        "images per class",
    ),
    "estimate": ("", "calibration images"),
}


def summary(result: Values) -> Section:
    confused = _frequent_confusions(result)
    errors = f"Its most frequent errors: {confused}." if confused else "It made no errors here."
    return Section("Summary", (errors, _certainty(result)), key="summary")


def _frequent_confusions(result: Values) -> str:
    """The most frequent errors as "a mistaken for b (3 of 10)"; empty if there are none."""
    names, counts = result["class_names"], np.array(result["confusion"])
    totals = counts.sum(axis=1)
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:_PAIRS]
    pairs = (divmod(int(number), len(names)) for number in order)
    return join_words(
        [
            f"{names[a]} mistaken for {names[b]} ({counts[a, b]} of {totals[a]})"
            for a, b in pairs
            if counts[a, b]
        ]
    )


def _certainty(result: Values) -> str:
    bins = [row for row in result["reliability"] if row["images"]]
    sure = sum(row["images"] * row["confidence"] for row in bins) / result["images"]
    gap = sure - result["accuracy"]
    low, high = result["intervals"].get("accuracy") or (math.inf, -math.inf)
    if abs(gap) <= _HONEST:
        verdict = "on average its confidence is about right"
    elif low <= sure <= high:
        verdict = "that may be chance with so few images"
    else:
        verdict = "it is overconfident" if gap > 0 else "it is underconfident"
    advice = "" if result["calibration"] else " (not calibrated: see ogkd calibrate)"
    return (
        f"Its mean confidence is {percent(sure)} and its accuracy "
        f"{percent(result['accuracy'])}: {verdict}{advice}."
    )


def metrics(result: Values) -> Section:
    values = {**result, "aurc": result["selective"]["aurc"]}
    listed = [metric for metric in METRICS.values() if metric.name in values]
    table = Table(
        ("metric", "value", "95 % interval"),
        tuple(metric_row(metric, values) for metric in listed),
        notes=tuple(metric.meaning for metric in listed),
    )
    text = (interval_text(result),)
    return Section("Performance", text, table, key="metrics", short="Metrics")


def classes(result: Values) -> Section:
    text = (
        "In percent, in brackets 95 % intervals. Recall: how many of the class's images are found. "
        "Precision: how often it is right when it predicts the class. Specificity: how many of all "
        "other images are not predicted as the class."
    )
    rows = [
        (name, str(row["images"]), *(cell(row, column.lower()) for column in _OF_CLASS))
        for name, row in result["per_class"].items()
    ]
    table = Table(("class", "images", *_OF_CLASS), tuple(rows))
    return Section("Each class", (text,), table, key="classes", short="Classes", brief=True)


def confusion(result: Values) -> Section:
    text = "Rows: true class. Columns: predicted class. Percentages are of the row."
    counts = np.asarray(result["confusion"])
    columns, names = name_columns(result["class_names"])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    rows = [
        (name, *(f"{n} ({percent(s)})" for n, s in zip(row, part, strict=True)))
        for name, row, part in zip(names, counts, shares, strict=True)
    ]
    table = Table(
        ("true \\ predicted", *columns),
        tuple(rows),
        shades=tuple(map(tuple, shares.tolist())),
        errors_off_diagonal=True,
    )
    return Section("Confusion matrix", (text,), table, key="confusion", short="Confusions")


def screening(result: Values) -> Section | None:
    """Finding or no finding; None if no class is normal or one side has no images."""
    values = result["screening"]
    if not (values and values["diseased_images"] and values["normal_images"]):
        return None
    ill, well = values["diseased_images"], values["normal_images"]
    missed, alarms = values["missed"], values["false_positives"]
    text = (
        f"Every class except {join_words(values['normal'])} counts as a finding; one finding "
        "mistaken for another counts as detected. The only question here is who would be referred: "
        f"{ill - missed} of {ill} images with a finding are detected, with false alarms on "
        f"{alarms} of {well} images without one. Flagging as many images by chance would detect "
        f"{percent((ill - missed + alarms) / result['images'])}."
    )
    rows = tuple((name, cell(values, name.lower())) for name in _SCREENING)
    table = Table(("in percent", "value"), rows, tuple(_SCREENING.values()))
    title = "Screening: finding or no finding"
    return Section(title, (text,), table, key="screening", short="Screening")


def referral(result: Values) -> Section:
    """The risk-coverage curve, and what referring images achieves."""
    selection, images = result["selective"], result["images"]
    overall = 1 - result["accuracy"]
    coverage = np.asarray(selection["curve"]["coverage"])
    kept = np.maximum(coverage * images, 1)
    ideal = np.maximum(0, kept - images * (1 - overall)) / kept
    risks = {float(c): risk for c, risk in selection["risk_at_coverage"].items()}
    falling = sorted(risks, reverse=True)
    points = ", ".join(f"{percent(risks[c])} with {percent(c)}" for c in falling[:4])
    x = tuple(coverage.tolist())
    chart = Chart(
        text=f"Risk-coverage curve: error rate among the images kept. {points} kept.",
        x_title="images kept, most confident first",
        y_title="error rate",
        lines=(
            Line("even", "confidence is of no use", (0.0, 1.0), (overall, overall)),
            Line("ideal", "ideal (all errors last)", x, tuple(ideal.tolist())),
            Line("model", "this model", x, tuple(selection["curve"]["risk"])),
        ),
    )
    rows = [
        (percent(1 - c), str(max(1, math.ceil(c * images - 1e-9))), f"{100 * risks[c]:.1f}")
        for c in falling
    ]
    text = "The fewer images it keeps, most confident first, the more are referred to a specialist."
    table = Table(("referred", "images kept", "errors among them (%)"), tuple(rows))
    title = "Referring the least confident images"
    return Section(title, (text,), table, (chart,), key="selective", short="Referral")


def guarantees(result: Values) -> Section | None:
    """Thresholds with guaranteed error rates, and why there are none for others."""
    if not result["abstain"]:
        return None
    text = [
        "The calibration images determine how confident the model must be for the error rate among "
        "the images it keeps to stay below a limit. With 90 % confidence, this holds for new "
        "images that are drawn in the same way."
    ]
    if refused := [row for row in result["abstain"] if "note" in row]:
        limits = join_words([f"{100 * row['max_risk']:g} %" for row in refused])
        # The note on the largest limit: it is the easiest to reach.
        reason = max(refused, key=lambda row: row["max_risk"])["note"]
        text.append(f"No guarantee is possible for at most {limits}: {reason}")
    rows = [
        (
            f"{100 * row['max_risk']:g} %",
            f"{100 * row['threshold']:.2f}",
            cell(row, "coverage"),
            cell(row, "risk"),
        )
        for row in result["abstain"]
        if "threshold" in row
    ]
    head = ("errors at most", "refer below (%)", "kept here (%)", "errors here (%)")
    title = "Error limits guaranteed for new images"
    return Section(title, tuple(text), Table(head, tuple(rows)) if rows else None)


def calibration(result: Values) -> Section:
    """Reliability, before and after calibration if there is one."""
    text, table, states = _NOT_CALIBRATED, None, {"Reliability": result}
    if fitted := result["calibration"]:
        text = fitted["text"]
    if fitted and fitted["applied"]:
        states = {"Before calibration": fitted["before"], "After calibration": result}
        rows = [
            (metric.heading, *(metric.text(state[metric.name]) for state in states.values()))
            for metric in (METRICS["ece"], METRICS["brier"], METRICS["nll"])
        ]
        table = Table(("smaller is better", *states), tuple(rows))
    charts = tuple(_reliability(state, name) for name, state in states.items())
    title = "Calibration: can its confidence be trusted?"
    return Section(title, (text,), table, charts, key="calibration", short="Calibration")


def _reliability(state: Values, title: str) -> Chart:
    """Accuracy against confidence, with one dot for each bin."""
    rows = [row for row in state["reliability"] if row["images"]]
    most = max(row["images"] for row in rows)
    dots = tuple(
        Dot(
            row["confidence"],
            row["accuracy"],
            row["images"] / most,
            f"{row['images']} images: {100 * row['confidence']:.0f} % confident, "
            f"{100 * row['accuracy']:.0f} % correct",
        )
        for row in rows
    )
    return Chart(
        text=f"Reliability diagram: accuracy against confidence in {len(rows)} bins; ECE "
        f"{METRICS['ece'].text(state['ece'])} %.",
        x_title="confidence",
        y_title="accuracy",
        lines=(Line("even", "perfect calibration", (0.0, 1.0), (0.0, 1.0)),),
        dots=dots,
        title=title,
    )


def prediction_sets(result: Values) -> Section | None:
    """Sets that could be measured, and the guarantees that need more images."""
    if not result["sets"]:
        return None
    drawn, what = _SETS[result["sets"][0]["kind"]]
    how = "guaranteed" if drawn else "intended"
    promise = (
        f"The guarantee is {drawn}."
        if drawn
        else "This is an estimate, not a guarantee: the same labels scaled the probabilities."
    )
    text = [
        "Instead of one class, the model can return a set of classes that contains the true one as "
        f"often as {how}. {promise} A set of one class is a clear answer, a larger set shows what "
        "cannot be told apart, and an empty set means that no class fits."
    ]
    if few := [f"{100 * row['wanted']:g} %" for row in result["sets"] if "note" in row]:
        text.append(f"No sets for {' or '.join(few)}: there are too few {what}.")
    rows = [
        (
            f"{100 * row['wanted']:g} %",
            cell({**row, "intervals": {"coverage": row["interval"]}}, "coverage"),
            f"{row['mean_size']:.2f}",
            cell(row, "single"),
            cell(row, "empty"),
        )
        for row in result["sets"]
        if "coverage" in row
    ]
    head = (how, "contain it (%)", "mean size", "single (%)", "empty (%)")
    table = Table(head, tuple(rows)) if rows else None
    return Section("Prediction sets (conformal)", tuple(text), table, key="sets", short="Sets")


CLASS_SECTIONS = (
    summary,
    subgroups,
    classes,
    metrics,
    confusion,
    screening,
    referral,
    guarantees,
    calibration,
    prediction_sets,
)

"""Where the paper's text and its authors' released code differ: one named option each.

`RELEASED` is what the published numbers were computed with (the default everywhere), `PAPER`
the equations as printed. The comments name the row of the audit and the equation.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ogkd.core.losses import GadNormalisation, LgdNormalisation, PatchRounding, SccmNormalisation
from ogkd.core.teacher import Selector
from ogkd.errors import ConfigError

__all__ = ["PAPER", "PRESETS", "RELEASED", "Fidelity", "fidelity"]


class Fidelity(BaseModel):
    """One choice for each difference; the defaults are the released code's.

    >>> Fidelity(selector="class").selector
    'class'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    # AUDIT #1, eq. 6: Σ/(B·C) as released, Σ/B in the paper.
    gad_normalisation: GadNormalisation = "batch_class"
    # AUDIT #2, eq. 13: Σ/(B·K) as released, Σ/B in the paper.
    lgd_normalisation: LgdNormalisation = "batch_patch"
    # AUDIT #3, eq. 15: mean over C·d as released, 1/C in the paper.
    sccm_normalisation: SccmNormalisation = "mean"
    # AUDIT #7, eq. 4 and 10: no T as released; the paper has T without a value. So 1 in both.
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # AUDIT #8, eq. 8-9: |cos| as released, the highest cos in the paper.
    patch_score: Literal["absolute", "signed"] = "absolute"
    # AUDIT #9, after eq. 9: round half to even as released, floor in the paper.
    patch_rounding: PatchRounding = "half_even"
    # AUDIT #12, §3.2: one choice per batch for all classes as released, "per class" in the paper.
    selector: Selector = "batch"
    # AUDIT #22: the released loop leaves the text tower's dropout on; "frozen" in the paper.
    text_dropout: bool = True
    # AUDIT #4, eq. 5 and 11: neither makes the diffused teacher a distribution again.
    normalise_target: bool = False


RELEASED = Fidelity()
PAPER = Fidelity(
    gad_normalisation="batch",
    lgd_normalisation="batch",
    sccm_normalisation="class",
    patch_score="signed",
    patch_rounding="floor",
    selector="class",
    text_dropout=False,
)
PRESETS = {"released": RELEASED, "paper": PAPER}


def fidelity(name: str = "released", **overrides: Any) -> Fidelity:
    """Look up a preset by name and change single options.

    >>> fidelity("paper", temperature=2.0).temperature
    2.0
    """
    if name not in PRESETS:
        raise ConfigError(
            f"Unknown fidelity {name!r}. Use one of {', '.join(PRESETS)}, "
            "and change single options by their own names."
        )
    for option in overrides:
        if option not in Fidelity.model_fields:
            known = ", ".join(Fidelity.model_fields)
            raise ConfigError(f"Unknown fidelity option {option!r}. Use one of {known}.")
    try:
        return Fidelity(**(PRESETS[name].model_dump() | overrides))
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(
            f"Fidelity option `{problem['loc'][0]}` is {problem['input']!r}, which cannot be used: "
            f"{problem['msg']}."
        ) from None

"""Where the paper's text and its authors' released code differ: one named option each.

`RELEASED` is what the published numbers were computed with (the default everywhere), `PAPER`
the equations as printed. The numbers in the comments are those of docs/concepts/fidelity.md.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ogkd.core.losses import GadNormalisation, LgdNormalisation, PatchRounding, SccmNormalisation
from ogkd.core.teacher import Selector
from ogkd.errors import ConfigError
from ogkd.records import first_problem


class Fidelity(BaseModel):
    """One choice for each difference; the defaults are the released code's.

    >>> Fidelity(selector="class").selector
    'class'
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # 1, eq. 6: Σ/(B·C) as released, Σ/B in the paper.
    gad_normalisation: GadNormalisation = "batch_class"
    # 2, eq. 13: Σ/(B·K) as released, Σ/B in the paper.
    lgd_normalisation: LgdNormalisation = "batch_patch"
    # 3, eq. 15: mean over C·d as released, 1/C in the paper.
    sccm_normalisation: SccmNormalisation = "mean"
    # 7, eq. 4 and 10: the released code has no T; the paper gives no value. So 1 in both.
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # 8, eq. 8-9: |cos| as released, the highest cos in the paper.
    patch_score: Literal["absolute", "signed"] = "absolute"
    # 9, after eq. 9: round half to even as released, floor in the paper.
    patch_rounding: PatchRounding = "half_even"
    # 12, §3.2: one choice per batch for all classes as released, "per class" in the paper.
    selector: Selector = "batch"
    # 43, Alg. 2: the teacher of each batch as released; one for the whole training in the paper.
    fixed_teacher: bool = False
    # 22: the released loop leaves the text tower's dropout on; "frozen" in the paper.
    text_dropout: bool = True


RELEASED = Fidelity()
PAPER = Fidelity(
    gad_normalisation="batch",
    lgd_normalisation="batch",
    sccm_normalisation="class",
    patch_score="signed",
    patch_rounding="floor",
    selector="class",
    fixed_teacher=True,
    text_dropout=False,
)
PRESETS = {"released": RELEASED, "paper": PAPER}


def fidelity(name: str = "released", **overrides: Any) -> Fidelity:
    """Look up a preset by name and override single options.

    >>> fidelity("paper", temperature=2.0).temperature
    2.0
    """
    if name not in PRESETS:
        raise ConfigError(f"fidelity must be one of {', '.join(PRESETS)}, but is {name!r}.")
    try:
        return Fidelity(**(PRESETS[name].model_dump() | overrides))
    except ValidationError as error:
        known = ", ".join(Fidelity.model_fields)
        raise ConfigError(
            f"Options of fidelity: {first_problem(error)}. There are: {known}."
        ) from None

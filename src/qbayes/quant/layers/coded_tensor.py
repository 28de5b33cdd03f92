"""An activation in evaluation: its codes, and what a code means."""

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Coded:
    """``f = S (q − Z)``: whole numbers ``0 … 2^n − 1`` in float lanes with their scale and zero-point."""

    codes: Tensor
    scale: Tensor
    zero: Tensor
    bits: int

    @property
    def centred(self) -> Tensor:
        """``q − Z``, so that 0 is 0."""
        return self.codes - self.zero

    @property
    def real(self) -> Tensor:
        """``S (q − Z)`` in float32."""
        return self.scale * self.centred

    @property
    def limit(self) -> int:
        """The largest ``|q − Z|`` whatever Z is."""
        return (1 << self.bits) - 1

    def moved(self, codes: Tensor) -> "Coded":
        """The same grid with codes that were moved or chosen, not computed."""
        return replace(self, codes=codes)

    def times(self, factor: Tensor) -> "Coded":
        """The same codes, each worth ``factor`` times as much."""
        return replace(self, scale=self.scale * factor)

"""Every batch norm as a fixed affine map, against the network in eval mode; also those of other libraries."""

from __future__ import annotations

import pytest
import torch
from fold_helpers import randomize
from timm.layers import BatchNormAct2d, SplitBatchNorm2d
from timm.layers.norm_act import SyncBatchNormAct
from torch import Tensor, nn

import normless as nl
from normless.nn import AlternatingBatchNorm2d, FrozenAffine, GhostBatchNorm2d, PartialBatchNorm2d
from normless.nn.batch_norms import PartialBatchNorm3d

IMAGES = torch.randn(4, 6, 5, 5)
NORMS = {
    "1d": (lambda: nn.BatchNorm1d(6), torch.randn(4, 6)),
    "2d": (lambda: nn.BatchNorm2d(6, eps=0.1), IMAGES),
    "3d": (lambda: nn.BatchNorm3d(6, affine=False), IMAGES[..., None]),
    "synchronized": (lambda: nn.SyncBatchNorm(6), IMAGES),
    "ghost": (lambda: GhostBatchNorm2d(6, ghost_size=2), IMAGES),
    "alternating": (lambda: AlternatingBatchNorm2d(6), IMAGES),
    "no mean": (lambda: PartialBatchNorm2d(6, mean=False), IMAGES),
    "no variance": (lambda: PartialBatchNorm2d(6, variance=False, beta=False), IMAGES),
    "volumes without a mean": (lambda: PartialBatchNorm3d(6, mean=False), IMAGES[..., None]),
    "only a mean": (lambda: PartialBatchNorm2d(6, variance=False, gamma=False, beta=False), IMAGES),
    "timm fused": (lambda: BatchNormAct2d(6, act_layer=nn.SiLU), IMAGES),
    "timm fused in slopes": (lambda: BatchNormAct2d(6, act_layer=nn.PReLU, drop_layer=nn.Dropout), IMAGES),
    "timm synchronized": (lambda: SyncBatchNormAct(6), IMAGES),
    "timm split": (lambda: SplitBatchNorm2d(6), IMAGES),
}


@pytest.mark.parametrize("case", NORMS)
def test_each_gives_what_it_gave_in_eval_mode(case: str) -> None:
    build, x = NORMS[case]
    model = randomize(nn.Sequential(nn.Identity(), build()))
    if case == "timm synchronized":
        # timm builds the parts of this one only when it converts a fused norm.
        model[1].drop, model[1].act = nn.Identity(), nn.ReLU()
    frozen = nl.freeze(model)
    assert isinstance(frozen[1], FrozenAffine)
    expected = model.eval()(x.clone())
    torch.testing.assert_close(frozen.eval()(x.clone()), expected)
    if case != "timm fused in slopes":  # Its dropout drops in train mode, as it should.
        torch.testing.assert_close(frozen.train()(x.clone()), expected)


class Skipping(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x


def test_refusals_name_the_norm_and_what_to_do() -> None:
    with pytest.raises(nl.UnsupportedEditError, match=r"^body\.0 is a BatchNorm2d without running statistics"):
        nl.freeze(nn.ModuleDict({"body": nn.Sequential(nn.BatchNorm2d(6, track_running_stats=False))}))
    with pytest.raises(nl.UnsupportedEditError, match=r"^0 is a Skipping, which does more .*: a Skipping .* add"):
        nl.freeze(nn.Sequential(Skipping(6)))
    hooked = nn.Sequential(nn.BatchNorm2d(6))
    hooked[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(nl.UnsupportedEditError, match=r"^0 carries hooks"):
        nl.freeze(hooked)

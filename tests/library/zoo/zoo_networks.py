"""One small network of every architecture module of timm, with its residual blocks counted by hand.

The counts are read off the definition of the architecture, never off a map: the sums x + f(x) that one forward pass
takes. `blocks` are those that lie in no other's branch, `inner` the rest; None where the definition leaves open what
is a block, and `count` then says why. `fitted` are the blocks whose skip path is not the identity but a projection, a
pooling or a part of the channels or tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import timm
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ZooNetwork:
    """A network of timm: its module of architectures, its name, how many blocks it has and how they are counted."""

    module: str
    name: str
    blocks: int | None
    count: str
    inner: int | None = 0
    fitted: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def build(self) -> nn.Module:
        """The network with random weights, as timm builds it."""
        model: nn.Module = timm.create_model(self.name, **self.options)
        return model

    def images(self, model: nn.Module) -> Tensor:
        """Two random images of the size the network is made for."""
        return torch.randn(2, *model.default_cfg["input_size"])  # type: ignore[misc]


ZOO = (
    ZooNetwork("beit", "beit_base_patch16_224", 24, "12 × (attention, MLP)"),
    ZooNetwork("byoanet", "halonet_h1", 19, "3 + 3 + 10 + 3 bottlenecks; sums of logits are none", fitted=3),
    ZooNetwork(
        "byobnet", "test_byobnet", 4, "an edge, a dark, a basic block, a bottleneck; all shortcuts project", fitted=4
    ),
    ZooNetwork("byobnet", "repvgg_a0", 0, "every unit is parallel convolutions with batch norm, one layer"),
    ZooNetwork("byobnet", "mobileone_s0", 0, "every unit is parallel convolutions with batch norm, one layer"),
    ZooNetwork("cait", "cait_xxs24_224", 52, "24 × (attention, MLP), 2 × (class attention, MLP)"),
    ZooNetwork(
        "coat",
        "coat_tiny",
        78,
        "8 serial blocks × (position, attention, MLP), 6 parallel blocks × 3 scales × (position, attention, MLP)",
    ),
    ZooNetwork("convit", "convit_tiny", 24, "12 × (attention, MLP)"),
    ZooNetwork("convmixer", "convmixer_768_32", 32, "a residual depthwise convolution in each of 32 blocks"),
    ZooNetwork("convnext", "test_convnext", 9, "1 + 2 + 4 + 2"),
    ZooNetwork("cpubone", "cpubone_nano", 9, "3 convolutions and 3 × (attention, MLP), the others at stride 2"),
    ZooNetwork(
        "crossvit", "crossvit_tiny_240", 36, "3 × ((1 + 4) × (attention, MLP) + 2 cross attentions)", fitted=6
    ),
    ZooNetwork(
        "csatv2",
        "csatv2",
        22,
        "2 + 2 + 6 + 4 convolutional blocks, 4 × (attention, MLP); inside the gate of the former position, attention "
        "and MLP, inside the attention of the latter position",
        inner=14 * 3 + 4,
    ),
    ZooNetwork("cspnet", "cs3darknet_focus_s", 9, "1 + 2 + 3 + 3 dark blocks, between a split and a concatenation"),
    ZooNetwork("cspnext", "cspnext_tiny", 3, "1 + 1 + 1 + 1 blocks, the last without an addition"),
    ZooNetwork(
        "davit", "davit_tiny", 48, "(1 + 1 + 3 + 1) × (spatial, channel) × (position, attention, position, MLP)"
    ),
    ZooNetwork("deepseek_vit", "deepseek_vit_412m", 8, "4 × (attention, MLP)", options={"depth": 4}),
    ZooNetwork("deit", "deit_tiny_patch16_224", 24, "12 × (attention, MLP)"),
    ZooNetwork("densenet", "densenet121", 0, "concatenates and never adds"),
    ZooNetwork("dla", "dla46x_c", 12, "12 bottlenecks; the roots of this one have no shortcut", fitted=4),
    ZooNetwork("dla", "dla102", 42, "2 + 8 + 16 + 2 bottlenecks, 1 + 4 + 8 + 1 roots that add a child", fitted=4),
    ZooNetwork("dpn", "dpn48b", 16, "3 + 4 + 6 + 3 blocks, each adding to part of its channels", fitted=16),
    ZooNetwork(
        "edgenext",
        "edgenext_xx_small",
        12,
        "9 convolutional and 3 split-transpose blocks; inside the latter an attention, and sums of neighbouring "
        "chunks of channels",
        inner=6,
    ),
    ZooNetwork("efficientformer", "efficientformer_l1", 30, "(3 + 2 + 6 + 4) × (pooling or attention, MLP)"),
    ZooNetwork(
        "efficientformer_v2",
        "efficientformerv2_s0",
        19,
        "14 MLPs, 4 of them behind an attention, and the one downsampling of attention plus convolution",
        inner=1,
        fitted=1,
    ),
    ZooNetwork("efficientnet", "efficientnet_b0", 9, "16 blocks in 7 stages, the first of each without a skip path"),
    ZooNetwork(
        "efficientvim", "efficientvim_m1", 28, "6 × (convolution, mixer, convolution, FFN), 2 merges × 2 convolutions"
    ),
    ZooNetwork(
        "efficientvit_mit", "efficientvit_b0", 11, "a separable convolution, 4 attentions, 6 inverted residuals"
    ),
    ZooNetwork(
        "efficientvit_msra",
        "efficientvit_m0",
        38,
        "6 × (convolution, FFN, attention, convolution, FFN), 2 subsamplings × 2 × (convolution, FFN); the heads "
        "of an attention are cascaded by sums of neighbouring chunks of channels",
        inner=18,
    ),
    ZooNetwork("eva", "vit_tiny_patch16_dinov3_qkvb", 24, "12 × (attention, MLP); the rotary embedding adds too"),
    ZooNetwork("fasternet", "fasternet_t0", 13, "1 + 2 + 8 + 2"),
    ZooNetwork(
        "fastvit", "fastvit_t8", 20, "(2 + 2 + 4 + 2) × (mixer, MLP); units of parallel convolutions are layers"
    ),
    ZooNetwork("focalnet", "focalnet_tiny_srf", 24, "(2 + 2 + 6 + 2) × (modulation, MLP)"),
    ZooNetwork(
        "gcvit",
        "gcvit_xxtiny",
        35,
        "(2 + 2 + 6 + 2) × (attention, MLP), 4 downsamplings, 3 + 2 + 1 + 1 convolutions for the global query",
    ),
    ZooNetwork("gemma4_vit", "gemma4_vit_167m", 8, "4 × (attention, MLP)", options={"depth": 4}),
    ZooNetwork("ghostnet", "ghostnet_050", 16, "16 bottlenecks, all with a skip path", fitted=5),
    ZooNetwork("hardcorenas", "hardcorenas_b", 12, "12 inverted residuals at stride 1 between equal widths"),
    ZooNetwork("hgnet", "hgnetv2_b0", 1, "the second block of the third stage"),
    ZooNetwork("hiera", "hiera_tiny_224", 24, "(1 + 2 + 7 + 2) × (attention, MLP)", fitted=3),
    ZooNetwork("hieradet_sam2", "sam2_hiera_tiny", 24, "(1 + 2 + 7 + 2) × (attention, MLP)", fitted=3),
    ZooNetwork(
        "hrnet", "hrnet_w18_small", 23, "1 + 4 bottlenecks, (2 + 3 + 4) × 2 basic blocks; fusions are none", fitted=5
    ),
    ZooNetwork("iformer", "iformer_t", 26, "5 positions, 5 attentions, 16 convolutions and MLPs"),
    ZooNetwork("inception_next", "inception_next_atto", 12, "2 + 2 + 6 + 2"),
    ZooNetwork("inception_resnet_v2", "inception_resnet_v2", 40, "10 + 20 + 10"),
    ZooNetwork("inception_v3", "inception_v3", 0, "concatenates and never adds"),
    ZooNetwork("inception_v4", "inception_v4", 0, "concatenates and never adds"),
    ZooNetwork("lcnetv2", "lcnetv2_small", 1, "the last stage's second block; parallel depthwise ones are one layer"),
    ZooNetwork("levit", "levit_128s", 20, "(2 + 3 + 4) × (attention, MLP), an MLP behind 2 downsamplings"),
    ZooNetwork("lowformer", "lowformer_b0", 21, "7 convolutional blocks, 14 attentions and MLPs"),
    ZooNetwork("mambaout", "test_mambaout", 6, "1 + 1 + 3 + 1"),
    ZooNetwork("maxxvit", "test_coatnet", 8, "2 convolutional blocks, 3 × (attention, MLP)", fitted=4),
    ZooNetwork("metaformer", "poolformer_s12", 24, "(2 + 2 + 6 + 2) × (pooling, MLP)"),
    ZooNetwork("mlp_mixer", "gmlp_ti16_224", 30, "30"),
    ZooNetwork("mobilenetv3", "mobilenetv3_small_050", 7, "11 blocks, 4 at stride 2 or between unequal widths"),
    ZooNetwork("mobilenetv5", "mobilenetv5_base", 35, "2 edge residuals, 20 inverted ones, 13 attentions"),
    ZooNetwork("mobilevit", "mobilevit_xxs", 21, "3 bottlenecks, (2 + 4 + 3) × (attention, MLP)"),
    ZooNetwork(
        "mvitv2",
        "mvitv2_tiny",
        20,
        "(1 + 2 + 5 + 2) × (attention, MLP); an attention adds its query",
        inner=10,
        fitted=3,
    ),
    ZooNetwork("naflexvit", "naflexvit_base_patch16_parfac_gap", 24, "12 × (attention, MLP)"),
    ZooNetwork("nasnet", "nasnetalarge", None, "cells of sums, of which some add their input", inner=None),
    ZooNetwork("nest", "nest_tiny", 24, "(2 + 2 + 8) × (attention, MLP)"),
    ZooNetwork(
        "nextvit", "nextvit_small", 44, "16 × (convolution, MLP), 4 × (attention, convolution, MLP over both)"
    ),
    ZooNetwork("nfnet", "test_nfnet", 4, "1 + 1 + 1 + 1, all shortcuts project", fitted=4),
    ZooNetwork("pit", "pit_ti_224", 24, "(2 + 6 + 4) × (attention, MLP)"),
    ZooNetwork("pnasnet", "pnasnet5large", None, "cells of sums, of which some add their input", inner=None),
    ZooNetwork("pvt_v2", "pvt_v2_b0", 16, "(2 + 2 + 2 + 2) × (attention, MLP)"),
    ZooNetwork("qwen3_vit", "qwen3_vit_88m", 24, "12 × (attention, MLP); the rotary embedding adds too"),
    ZooNetwork("rdnet", "rdnet_tiny", 0, "concatenates and never adds"),
    ZooNetwork("regnet", "regnetx_002", 13, "1 + 1 + 4 + 7", fitted=4),
    ZooNetwork("repghost", "repghostnet_050", 16, "16 bottlenecks, all with a skip path", fitted=5),
    ZooNetwork("repvit", "repvit_m1", 26, "2 + 2 + 14 + 2 channel mixers, 2 in each of 3 downsamplings"),
    ZooNetwork(
        "res2net",
        "res2next50",
        16,
        "3 + 4 + 6 + 3; in all but the first of a stage 2 of 3 groups",
        inner=24,
        fitted=4,
    ),
    ZooNetwork("resnest", "resnest14d", 4, "1 + 1 + 1 + 1", fitted=4),
    ZooNetwork("resnet", "test_resnet", 4, "3 basic blocks, a bottleneck", fitted=3),
    ZooNetwork("resnetv2", "resnetv2_18", 8, "2 + 2 + 2 + 2", fitted=3),
    ZooNetwork("rexnet", "rexnet_100", 11, "11 of 16 blocks at stride 1, each adding to its first channels"),
    ZooNetwork("selecsls", "selecsls42", 0, "concatenates and never adds"),
    ZooNetwork("senet", "legacy_seresnet18", 8, "2 + 2 + 2 + 2", fitted=3),
    ZooNetwork("sequencer", "sequencer2d_s", 36, "(4 + 3 + 8 + 3) × (LSTM, MLP)"),
    ZooNetwork(
        "shvit", "shvit_s1", 39, "2 × (convolution, FFN), 9 × (convolution, attention, FFN), 2 × 2 (convolution, FFN)"
    ),
    ZooNetwork("sknet", "skresnet18", 8, "2 + 2 + 2 + 2", fitted=3),
    ZooNetwork("starnet", "starnet_s050", 6, "1 + 1 + 3 + 1"),
    ZooNetwork(
        "swiftformer",
        "swiftformer_xs",
        24,
        "12 convolutions, 4 × (convolution, attention, MLP); an attention adds its query",
        inner=4,
    ),
    ZooNetwork("swin_transformer", "swin_tiny_patch4_window7_224", 24, "(2 + 2 + 6 + 2) × (attention, MLP)"),
    ZooNetwork("swin_transformer_v2", "swinv2_tiny_window8_256", 24, "(2 + 2 + 6 + 2) × (attention, MLP)"),
    ZooNetwork("swin_transformer_v2_cr", "swinv2_cr_tiny_224", 24, "(2 + 2 + 6 + 2) × (attention, MLP)"),
    ZooNetwork("tiny_vit", "tiny_vit_5m_224", 22, "2 convolutions, (2 + 6 + 2) × (attention, MLP)"),
    ZooNetwork("tnt", "tnt_s_legacy_patch16_224", 48, "12 × (attention, MLP) × (pixels, patches)"),
    ZooNetwork("tresnet", "tresnet_m", 21, "3 + 4 + 11 + 3", fitted=3),
    ZooNetwork("twins", "twins_svt_small", 40, "(2 + 2 + 10 + 4) × (attention, MLP), a position in each of 4 stages"),
    ZooNetwork("vgg", "vgg11", 0, "never adds"),
    ZooNetwork("visformer", "visformer_tiny", 23, "7 convolutional MLPs, 8 × (attention, MLP)"),
    ZooNetwork("vision_transformer", "test_vit", 12, "6 × (attention, MLP)"),
    ZooNetwork(
        "vision_transformer",
        "vit_small_patch16_18x2_224",
        8,
        "4 × (two attentions side by side, two MLPs side by side), each pair one block of two branches",
        options={"depth": 4},
    ),
    ZooNetwork(
        "vision_transformer",
        "vit_base_patch16_xp_224",
        4,
        "4 × attention and MLP side by side, of one input projection",
        options={"depth": 4},
    ),
    ZooNetwork("vision_transformer_hybrid", "vit_tiny_r_s16_p8_224", 24, "12 × (attention, MLP) behind a bare stem"),
    ZooNetwork("vision_transformer_relpos", "test_vit_relpos", 18, "9 × (attention, MLP)"),
    ZooNetwork("vision_transformer_sam", "samvit_base_patch16_224", 24, "12 × (attention, MLP)"),
    ZooNetwork("vitamin", "vitamin_small_224", 34, "2 + 4 convolutional blocks, 14 × (attention, MLP)", fitted=2),
    ZooNetwork(
        "volo", "volo_d1_224", 40, "4 outlookers, 14 transformers, 2 class blocks, each (attention, MLP)", fitted=2
    ),
    ZooNetwork("vovnet", "ese_vovnet19b_slim_dw", 0, "concatenates; this one has no identity mapping"),
    ZooNetwork("xception", "legacy_xception", 12, "12 blocks of the three flows", fitted=4),
    ZooNetwork("xception_aligned", "xception41p", 12, "13 blocks, the last without a skip path", fitted=4),
    ZooNetwork("xcit", "xcit_nano_12_p8_224", 40, "12 × (attention, local, MLP), 2 × (class attention, MLP)"),
)
BY_NAME = {network.name: network for network in ZOO}

"""A network of every architecture module of timm, and those of torchvision, their residual blocks counted by hand.

The counts are read off the definition of the architecture, never off a map: the sums x + f(x) that one forward pass
takes. A number is open where the definition leaves open what is a block.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gallery.row import Row, add

MODULES: dict[str, str] = {}
"""The module of architectures of each network of timm, by the name of its row."""
OPTIONS: dict[str, str] = {}
"""Their arguments as text, where they have some."""
SIZES = {"inception_v3": (299, 299), "r3d_18": (16, 112, 112), "mvit_v1_b": (16, 224, 224)}


def timm_network(name: str, options: dict[str, Any]) -> nn.Module:
    """The network with random weights, as timm builds it."""
    import timm

    return timm.create_model(name, **options)


def timm_images(name: str, options: dict[str, Any]) -> Tensor:
    """Two random images of the size the network is made for."""
    import timm

    with torch.device("meta"):
        config = timm.create_model(name, **options).default_cfg
    return torch.randn(2, *config["input_size"])


def timm(
    module: str,
    name: str,
    blocks: int | None,
    count: str,
    inner: int | None = 0,
    fitted: int = 0,
    affine: int | None = None,
    **options: Any,
) -> None:
    """Enter a network of timm: its module, its name, how many blocks it has and how they are counted."""
    MODULES[f"timm {name}"] = module
    if options:
        OPTIONS[f"timm {name}"] = f" ({', '.join(f'{key}={value}' for key, value in options.items())})"
    counts = (blocks, inner, fitted if blocks is not None else None)
    made, images = partial(timm_network, name, options), partial(timm_images, name, options)
    reasons = {"skipinit": "its branch returns 0"} if module == "nfnet" else {}
    stated: dict[str, Any] = {"count": counts, "affine": affine, "refused": reasons}
    add(Row(f"timm {name}", "zoo", made, images, count, needs=("timm",), size="zoo", **stated))


def torchvision_network(name: str, options: dict[str, Any]) -> nn.Module:
    """The network with random weights, as torchvision builds it."""
    import torchvision

    return torchvision.models.get_model(name, **options)


def torchvision(name: str, blocks: int, fitted: int = 0, affine: int | None = None, **options: Any) -> None:
    """Enter a network of torchvision; none of them nests blocks."""
    shape = ", ".join(map(str, SIZES.get(name, (224, 224))))
    made, inputs = partial(torchvision_network, name, options), f"randn(2, 3, {shape})"
    stated: dict[str, Any] = {"count": (blocks, 0, fitted), "affine": affine, "needs": ("torchvision",)}
    add(Row(f"torchvision {name}", "zoo", made, inputs, size="zoo", **stated))


TIMM = """
beit beit_base_patch16_224 24: 12 × (attention, MLP)
byoanet halonet_h1 19 fitted=3: 3 + 3 + 10 + 3 bottlenecks; sums of logits are none
byobnet test_byobnet 4 fitted=4 affine=0: an edge, a dark, a basic block, a bottleneck; all shortcuts project
byobnet repvgg_a0 0 affine=1+3+13+0: every unit is parallel convolutions with batch norm, one layer
byobnet mobileone_s0 0: every unit is parallel convolutions with batch norm, one layer
cait cait_xxs24_224 52: 24 × (attention, MLP), 2 × (class attention, MLP)
coat coat_tiny 78: 8 serial blocks × (position, attention, MLP), 6 parallel blocks × 3 scales × (position,
    attention, MLP)
convit convit_tiny 24: 12 × (attention, MLP)
convmixer convmixer_768_32 32: a residual depthwise convolution in each of 32 blocks
convnext test_convnext 9: 1 + 2 + 4 + 2
cpubone cpubone_nano 9: 3 convolutions and 3 × (attention, MLP), the others at stride 2
crossvit crossvit_tiny_240 36 fitted=6: 3 × ((1 + 4) × (attention, MLP) + 2 cross attentions)
csatv2 csatv2 22 inner=42+4: 2 + 2 + 6 + 4 convolutional blocks, 4 × (attention, MLP); inside the gate of the former
    position, attention and MLP, inside the attention of the latter position
cspnet cs3darknet_focus_s 9: 1 + 2 + 3 + 3 dark blocks, between a split and a concatenation
cspnext cspnext_tiny 3: 1 + 1 + 1 + 1 blocks, the last without an addition
davit davit_tiny 48: (1 + 1 + 3 + 1) × (spatial, channel) × (position, attention, position, MLP)
deepseek_vit deepseek_vit_412m 8 depth=4: 4 × (attention, MLP)
deit deit_tiny_patch16_224 24: 12 × (attention, MLP)
densenet densenet121 0 affine=6+12+24+16+3+1: concatenates and never adds
dla dla46x_c 12 fitted=4: 12 bottlenecks; the roots of this one have no shortcut
dla dla102 42 fitted=4: 2 + 8 + 16 + 2 bottlenecks, 1 + 4 + 8 + 1 roots that add a child
dpn dpn48b 16 fitted=16: 3 + 4 + 6 + 3 blocks, each adding to part of its channels
edgenext edgenext_xx_small 12 inner=6: 9 convolutional and 3 split-transpose blocks; inside the latter an attention,
    and sums of neighbouring chunks of channels
efficientformer efficientformer_l1 30: (3 + 2 + 6 + 4) × (pooling or attention, MLP)
efficientformer_v2 efficientformerv2_s0 19 inner=1 fitted=1: 14 MLPs, 4 of them behind an attention, and the one
    downsampling of attention plus convolution
efficientnet efficientnet_b0 9: 16 blocks in 7 stages, the first of each without a skip path
efficientvim efficientvim_m1 28: 6 × (convolution, mixer, convolution, FFN), 2 merges × 2 convolutions
efficientvit_mit efficientvit_b0 11: a separable convolution, 4 attentions, 6 inverted residuals
efficientvit_msra efficientvit_m0 38 inner=18: 6 × (convolution, FFN, attention, convolution, FFN), 2 subsamplings ×
    2 × (convolution, FFN); the heads of an attention are cascaded by sums of neighbouring chunks of channels
eva vit_tiny_patch16_dinov3_qkvb 24: 12 × (attention, MLP); the rotary embedding adds too
fasternet fasternet_t0 13: 1 + 2 + 8 + 2
fastvit fastvit_t8 20: (2 + 2 + 4 + 2) × (mixer, MLP); units of parallel convolutions are layers
focalnet focalnet_tiny_srf 24: (2 + 2 + 6 + 2) × (modulation, MLP)
gcvit gcvit_xxtiny 35: (2 + 2 + 6 + 2) × (attention, MLP), 4 downsamplings, 3 + 2 + 1 + 1 convolutions for the
    global query
gemma4_vit gemma4_vit_167m 8 depth=4: 4 × (attention, MLP)
ghostnet ghostnet_050 16 fitted=5: 16 bottlenecks, all with a skip path
hardcorenas hardcorenas_b 12: 12 inverted residuals at stride 1 between equal widths
hgnet hgnetv2_b0 1: the second block of the third stage
hiera hiera_tiny_224 24 fitted=3: (1 + 2 + 7 + 2) × (attention, MLP)
hieradet_sam2 sam2_hiera_tiny 24 fitted=3: (1 + 2 + 7 + 2) × (attention, MLP)
hrnet hrnet_w18_small 23 fitted=5: 1 + 4 bottlenecks, (2 + 3 + 4) × 2 basic blocks; fusions are none
iformer iformer_t 26: 5 positions, 5 attentions, 16 convolutions and MLPs
inception_next inception_next_atto 12: 2 + 2 + 6 + 2
inception_resnet_v2 inception_resnet_v2 40: 10 + 20 + 10
inception_v3 inception_v3 0: concatenates and never adds
inception_v4 inception_v4 0: concatenates and never adds
lcnetv2 lcnetv2_small 1: the last stage's second block; parallel depthwise ones are one layer
levit levit_128s 20: (2 + 3 + 4) × (attention, MLP), an MLP behind 2 downsamplings
lowformer lowformer_b0 21: 7 convolutional blocks, 14 attentions and MLPs
mambaout test_mambaout 6: 1 + 1 + 3 + 1
maxxvit test_coatnet 8 fitted=4: 2 convolutional blocks, 3 × (attention, MLP)
metaformer poolformer_s12 24: (2 + 2 + 6 + 2) × (pooling, MLP)
mlp_mixer gmlp_ti16_224 30: 30
mobilenetv3 mobilenetv3_small_050 7: 11 blocks, 4 at stride 2 or between unequal widths
mobilenetv5 mobilenetv5_base 35: 2 edge residuals, 20 inverted ones, 13 attentions
mobilevit mobilevit_xxs 21: 3 bottlenecks, (2 + 4 + 3) × (attention, MLP)
mvitv2 mvitv2_tiny 20 inner=10 fitted=3: (1 + 2 + 5 + 2) × (attention, MLP); an attention adds its query
naflexvit naflexvit_base_patch16_parfac_gap 24: 12 × (attention, MLP)
nasnet nasnetalarge ? inner=?: cells of sums, of which some add their input
nest nest_tiny 24: (2 + 2 + 8) × (attention, MLP)
nextvit nextvit_small 44: 16 × (convolution, MLP), 4 × (attention, convolution, MLP over both)
nfnet test_nfnet 4 fitted=4: 1 + 1 + 1 + 1, all shortcuts project
pit pit_ti_224 24: (2 + 6 + 4) × (attention, MLP)
pnasnet pnasnet5large ? inner=?: cells of sums, of which some add their input
pvt_v2 pvt_v2_b0 16: (2 + 2 + 2 + 2) × (attention, MLP)
qwen3_vit qwen3_vit_88m 24: 12 × (attention, MLP); the rotary embedding adds too
rdnet rdnet_tiny 0: concatenates and never adds
regnet regnetx_002 13 fitted=4: 1 + 1 + 4 + 7
repghost repghostnet_050 16 fitted=5: 16 bottlenecks, all with a skip path
repvit repvit_m1 26: 2 + 2 + 14 + 2 channel mixers, 2 in each of 3 downsamplings
res2net res2next50 16 inner=24 fitted=4: 3 + 4 + 6 + 3; in all but the first of a stage 2 of 3 groups
resnest resnest14d 4 fitted=4: 1 + 1 + 1 + 1
resnet test_resnet 4 fitted=3: 3 basic blocks, a bottleneck
resnetv2 resnetv2_18 8 fitted=3 affine=8+1: 2 + 2 + 2 + 2
rexnet rexnet_100 11: 11 of 16 blocks at stride 1, each adding to its first channels
selecsls selecsls42 0: concatenates and never adds
senet legacy_seresnet18 8 fitted=3: 2 + 2 + 2 + 2
sequencer sequencer2d_s 36: (4 + 3 + 8 + 3) × (LSTM, MLP)
shvit shvit_s1 39: 2 × (convolution, FFN), 9 × (convolution, attention, FFN), 2 × 2 (convolution, FFN)
sknet skresnet18 8 fitted=3: 2 + 2 + 2 + 2
starnet starnet_s050 6: 1 + 1 + 3 + 1
swiftformer swiftformer_xs 24 inner=4: 12 convolutions, 4 × (convolution, attention, MLP); an attention adds its
    query
swin_transformer swin_tiny_patch4_window7_224 24: (2 + 2 + 6 + 2) × (attention, MLP)
swin_transformer_v2 swinv2_tiny_window8_256 24: (2 + 2 + 6 + 2) × (attention, MLP)
swin_transformer_v2_cr swinv2_cr_tiny_224 24: (2 + 2 + 6 + 2) × (attention, MLP)
tiny_vit tiny_vit_5m_224 22: 2 convolutions, (2 + 6 + 2) × (attention, MLP)
tnt tnt_s_legacy_patch16_224 48: 12 × (attention, MLP) × (pixels, patches)
tresnet tresnet_m 21 fitted=3: 3 + 4 + 11 + 3
twins twins_svt_small 40: (2 + 2 + 10 + 4) × (attention, MLP), a position in each of 4 stages
vgg vgg11 0: never adds
visformer visformer_tiny 23: 7 convolutional MLPs, 8 × (attention, MLP)
vision_transformer test_vit 12: 6 × (attention, MLP)
vision_transformer vit_small_patch16_18x2_224 8 depth=4: 4 × (two attentions side by side, two MLPs side by side),
    each pair one block of two branches
vision_transformer vit_base_patch16_xp_224 4 depth=4: 4 × attention and MLP side by side, of one input projection
vision_transformer_hybrid vit_tiny_r_s16_p8_224 24: 12 × (attention, MLP) behind a bare stem
vision_transformer_relpos test_vit_relpos 18: 9 × (attention, MLP)
vision_transformer_sam samvit_base_patch16_224 24: 12 × (attention, MLP)
vitamin vitamin_small_224 34 fitted=2: 2 + 4 convolutional blocks, 14 × (attention, MLP)
volo volo_d1_224 40 fitted=2: 4 outlookers, 14 transformers, 2 class blocks, each (attention, MLP)
vovnet ese_vovnet19b_slim_dw 0: concatenates; this one has no identity mapping
xception legacy_xception 12 fitted=4: 12 blocks of the three flows
xception_aligned xception41p 12 fitted=4: 13 blocks, the last without a skip path
xcit xcit_nano_12_p8_224 40: 12 × (attention, local, MLP), 2 × (class attention, MLP)
"""


def number(text: str) -> int | None:
    """A number, or a sum of some, or None where the definition leaves it open."""
    return None if text == "?" else sum(map(int, text.split("+")))


for line in TIMM.strip().replace("\n    ", " ").splitlines():
    head, _, how = line.partition(": ")
    module, name, blocks, *settings = head.split()
    given = {key: number(value) for key, value in (one.split("=") for one in settings)}
    timm(module, name, number(blocks), how, **given)

# The blocks, and those without an identity skip, by the definition of each.
torchvision("alexnet", 0)
torchvision("convnext_tiny", 3 + 3 + 9 + 3)
torchvision("densenet121", 0, affine=6 + 12 + 24 + 16 + 3 + 1)
torchvision("efficientnet_b0", 0 + 1 + 1 + 2 + 2 + 3 + 0, affine=0)
torchvision("googlenet", 0, init_weights=False, affine=0)
torchvision("inception_v3", 0, init_weights=False, affine=0)
# Every layer: an inverted residual, window attention, MLP, grid attention, MLP; the first of a stage strides.
torchvision("maxvit_t", (2 + 2 + 5 + 2) * 5, fitted=4)
torchvision("mnasnet0_5", 2 + 2 + 2 + 1 + 3 + 0)
torchvision("mobilenet_v2", 0 + 1 + 2 + 3 + 2 + 2 + 0, affine=0)
torchvision("mobilenet_v3_small", 0 + 1 + 2 + 1 + 2)
torchvision("regnet_y_400mf", 1 + 3 + 6 + 6, fitted=4)
torchvision("resnet18", 2 + 2 + 2 + 2, fitted=3, affine=0)
torchvision("resnext50_32x4d", 3 + 4 + 6 + 3, fitted=4, affine=0)
torchvision("shufflenet_v2_x0_5", 0)
torchvision("squeezenet1_0", 0)
torchvision("swin_t", 2 * (2 + 2 + 6 + 2))
torchvision("swin_v2_t", 2 * (2 + 2 + 6 + 2))
torchvision("vgg11_bn", 0, affine=0)
torchvision("vit_b_16", 2 * 12)
torchvision("wide_resnet50_2", 3 + 4 + 6 + 3, fitted=4, affine=0)
torchvision("mvit_v1_b", 2 * 16, fitted=3 + 3)
torchvision("r3d_18", 2 + 2 + 2 + 2, fitted=3, affine=0)

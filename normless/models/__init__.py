"""Reference networks, each written once with normalization; schemes convert them to every other form.

Arguments of the networks for images:
    classes: number of logits.
    in_channels: channels of the image, usually 1 or 3.
    initialization: the distribution of all weights, including the classifier; biases start at 0. If None,
        convolutions have He's variance 2 / fan-out and the classifier torch's default, as in torchvision and in the
        code of Fixup's authors.
    channels: the channels of the stem and the first stage of a network for large images (64 in the papers); each
        further stage doubles them.
"""

from normless.models._dense import Dense
from normless.models._downloads import with_random_weights as with_random_weights
from normless.models._layers import MODELS, conv as conv
from normless.models._resnets import (
    BasicBlock as BasicBlock,
    PaddedShortcut as PaddedShortcut,
    ResNet,
    ResNetCifar,
    ResNetV2,
    WideResNet as WideResNet,
)
from normless.models._spec import (
    build_model,
    build_with_inputs as build_with_inputs,
    fitted_spec as fitted_spec,
)
from normless.models._text_classifier import (
    TRANSFORMERS as TRANSFORMERS,
    TokenNumbers as TokenNumbers,
    checkpoint_folder as checkpoint_folder,
    text_classifier,
)
from normless.models._transformer import Transformer as Transformer

dense, transformer = Dense, Transformer
resnet, resnet_v2, resnet_cifar, wide_resnet = ResNet, ResNetV2, ResNetCifar, WideResNet

__all__ = [
    "MODELS",
    "build_model",
    "dense",
    "resnet",
    "resnet_cifar",
    "resnet_v2",
    "text_classifier",
    "transformer",
    "wide_resnet",
]

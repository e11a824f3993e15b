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

from normless.models.dense import Dense as Dense
from normless.models.layers import MODELS as MODELS
from normless.models.layers import conv as conv
from normless.models.resnets import BasicBlock as BasicBlock
from normless.models.resnets import PaddedShortcut as PaddedShortcut
from normless.models.resnets import ResNet as ResNet
from normless.models.resnets import ResNetCifar as ResNetCifar
from normless.models.resnets import ResNetV2 as ResNetV2
from normless.models.resnets import WideResNet as WideResNet
from normless.models.resnets import blocks_per_stage as blocks_per_stage
from normless.models.spec import Inputs as Inputs
from normless.models.spec import Shape as Shape
from normless.models.spec import build_model as build_model
from normless.models.spec import build_with_inputs as build_with_inputs
from normless.models.spec import fitted_spec as fitted_spec
from normless.models.text_classifier import TRANSFORMERS as TRANSFORMERS
from normless.models.text_classifier import TextClassifier as TextClassifier
from normless.models.text_classifier import TokenNumbers as TokenNumbers
from normless.models.text_classifier import checkpoint_folder as checkpoint_folder
from normless.models.text_classifier import text_classifier as text_classifier
from normless.models.transformer import Transformer as Transformer

dense, transformer = Dense, Transformer
resnet, resnet_v2, resnet_cifar, wide_resnet = ResNet, ResNetV2, ResNetCifar, WideResNet

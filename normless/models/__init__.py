"""Reference networks, each written once, in its normalized form; schemes make every other form of it.

Arguments of the networks for images:
    classes: number of logits.
    in_channels: channels of the image, 1 or 3 as a rule.
    initialization: of all weights, the classifier's included; biases start at 0. None is He's variance 2 / fan-out
        for convolutions and torch's own distribution for the classifier, as in torchvision and in the code of
        Fixup's authors.
    channels: of the stem and the first stage of a network for large images, doubled by every further stage; fewer
        than the published 64 make a small network.
"""

from normless.models.dense import Dense as Dense
from normless.models.dense import dense as dense
from normless.models.layers import MODELS as MODELS
from normless.models.layers import blocks_per_stage as blocks_per_stage
from normless.models.layers import conv as conv
from normless.models.resnet import ResNet as ResNet
from normless.models.resnet import resnet as resnet
from normless.models.resnet_cifar import BasicBlock as BasicBlock
from normless.models.resnet_cifar import PaddedShortcut as PaddedShortcut
from normless.models.resnet_cifar import ResNetCifar as ResNetCifar
from normless.models.resnet_cifar import resnet_cifar as resnet_cifar
from normless.models.resnet_v2 import ResNetV2 as ResNetV2
from normless.models.resnet_v2 import resnet_v2 as resnet_v2
from normless.models.spec import Inputs as Inputs
from normless.models.spec import Shape as Shape
from normless.models.spec import build_model as build_model
from normless.models.spec import build_with_inputs as build_with_inputs
from normless.models.spec import fitted_spec as fitted_spec
from normless.models.text_classifier import SOURCE as SOURCE
from normless.models.text_classifier import TokenNumbers as TokenNumbers
from normless.models.text_classifier import checkpoint_folder as checkpoint_folder
from normless.models.text_classifier import text_classifier as text_classifier
from normless.models.transformer import Transformer as Transformer
from normless.models.transformer import transformer as transformer
from normless.models.wide_resnet import WideResNet as WideResNet
from normless.models.wide_resnet import wide_resnet as wide_resnet

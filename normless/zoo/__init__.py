"""Networks of torchvision, timm and transformers by their names in these libraries."""

from normless.zoo.images import image_network as image_network
from normless.zoo.images import image_shape as image_shape
from normless.zoo.text_classifier import TextClassifier as TextClassifier
from normless.zoo.text_classifier import TokenNumbers as TokenNumbers
from normless.zoo.text_classifier import checkpoint_folder as checkpoint_folder
from normless.zoo.text_classifier import text_classifier as text_classifier

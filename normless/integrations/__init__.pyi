from .lightning import LightningWatch as LightningWatch
from .opacus import prepare as prepare
from .transformers import TrainerWatch as TrainerWatch

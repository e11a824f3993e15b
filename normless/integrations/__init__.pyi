from .lightning import WatchCallback as LightningWatch
from .opacus import prepare as prepare
from .transformers import WatchCallback as TrainerWatch

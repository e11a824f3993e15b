from ._hub import HubNetwork as HubNetwork
from ._lightning import LightningRemoval as LightningRemoval, LightningWatch as LightningWatch
from ._opacus import prepare as prepare
from ._transformers import TrainerRemoval as TrainerRemoval, TrainerWatch as TrainerWatch

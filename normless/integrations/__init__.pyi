from .hub import HubNetwork as HubNetwork
from .lightning import LightningRemoval as LightningRemoval
from .lightning import LightningWatch as LightningWatch
from .opacus import prepare as prepare
from .transformers import TrainerRemoval as TrainerRemoval
from .transformers import TrainerWatch as TrainerWatch

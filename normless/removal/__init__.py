"""Take layer, RMS and group norms out of a trained network while it is fine-tuned."""

from normless.removal.begin import remove_norms as remove_norms
from normless.removal.removal import Removal as Removal
from normless.removal.schedule import Freezing as Freezing

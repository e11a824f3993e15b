"""``python -m normless``: the command line where no script is on the path, as under torchrun."""

import sys

from normless.cli import main

sys.exit(main())

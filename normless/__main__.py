"""``python -m normless``: the command line without the script, for example under torchrun."""

import sys

from normless.cli import main

sys.exit(main())

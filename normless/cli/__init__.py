"""The command line: ``normless COMMAND …``, and what commands of other packages share.

Nothing here imports torch: the module of a command is imported when that command is chosen.
"""

from typing import TYPE_CHECKING

from normless.lazy import attach

if TYPE_CHECKING:
    from normless.cli.batch import check_first_layer as check_first_layer
    from normless.cli.commands import COMMANDS as COMMANDS
    from normless.cli.commands import Command as Command
    from normless.cli.names import ARGUMENTS as ARGUMENTS
    from normless.cli.names import check_names as check_names
    from normless.cli.names import names_of as names_of
    from normless.cli.network import GAP as GAP
    from normless.cli.network import as_text as as_text
    from normless.cli.network import table as table
    from normless.cli.network import terminal_width as terminal_width
    from normless.cli.output import add_json_flag as add_json_flag
    from normless.cli.output import answer as answer
    from normless.cli.output import print_json as print_json
    from normless.cli.output import status_line as status_line
    from normless.cli.output import working as working
    from normless.cli.program import main as main
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)

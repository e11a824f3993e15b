from collections.abc import Sequence

from .commands import COMMANDS as COMMANDS
from .commands import Command as Command
from .names import ARGUMENTS as ARGUMENTS
from .names import check_names as check_names
from .names import names_of as names_of
from .network import GAP as GAP
from .network import as_text as as_text
from .network import table as table
from .network import terminal_width as terminal_width
from .output import add_json_flag as add_json_flag
from .output import answer as answer
from .output import print_json as print_json
from .output import status_line as status_line
from .output import working as working

def main(argv: Sequence[str] | None = None) -> int: ...

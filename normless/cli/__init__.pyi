from collections.abc import Sequence

from .commands import COMMANDS as COMMANDS
from .commands import Command as Command
from .network import GAP as GAP
from .network import as_text as as_text
from .network import table as table
from .network import terminal_width as terminal_width

def main(argv: Sequence[str] | None = None) -> int: ...

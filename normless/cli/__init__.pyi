from ._batch import check_first_layer as check_first_layer
from ._commands import COMMANDS as COMMANDS, Command as Command, help_of as help_of, is_task as is_task
from ._names import ARGUMENTS as ARGUMENTS, check_names as check_names
from ._network import (
    GAP as GAP,
    OUTCOME_COLOURS as OUTCOME_COLOURS,
    as_text as as_text,
    table as table,
    terminal_width as terminal_width,
)
from ._output import (
    add_json_flag as add_json_flag,
    answer as answer,
    print_json as print_json,
    status_line as status_line,
)
from ._program import main as main

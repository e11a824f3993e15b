"""The process that a command runs in: its processor cores, memory and standard output."""

from normless.process.cores import available_cores as available_cores
from normless.process.cores import threads_of_each as threads_of_each
from normless.process.memory import free_memory as free_memory
from normless.process.memory import peak_memory as peak_memory
from normless.process.memory import resident_memory as resident_memory
from normless.process.output import add_json_flag as add_json_flag
from normless.process.output import answer as answer
from normless.process.output import print_json as print_json
from normless.process.output import status_line as status_line
from normless.process.output import working as working
from normless.process.yaml_files import read_yaml as read_yaml
from normless.spec import jsonable as jsonable

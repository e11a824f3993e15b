"""The process that a command runs in: its processor cores and memory, and files of settings."""

from normless_lab.process.cores import available_cores as available_cores
from normless_lab.process.cores import threads_of_each as threads_of_each
from normless_lab.process.cores import yield_to_others as yield_to_others
from normless_lab.process.memory import free_memory as free_memory
from normless_lab.process.memory import peak_memory as peak_memory
from normless_lab.process.memory import resident_memory as resident_memory
from normless_lab.process.tables import read_table as read_table
from normless_lab.process.tables import write_csv as write_csv
from normless_lab.process.yaml_files import read_yaml as read_yaml

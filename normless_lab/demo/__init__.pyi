from .demo import DemoError as DemoError
from .demo import DemoResult as DemoResult
from .demo import run_demo as run_demo
from .report import format_accuracy as format_accuracy
from .report import format_rate as format_rate
from .settings import DemoSettings as DemoSettings

"""`python -m dlbridge` is the command `dlbridge`."""

import sys

from dlbridge.cli import main

sys.exit(main())

"""`python -m graphc` is the command `graphc`."""

import sys

from graphc.cli import main

sys.exit(main())

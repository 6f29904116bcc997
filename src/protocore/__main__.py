"""`python -m protocore` is the `protocore` command."""

import sys

from protocore.cli import main

sys.exit(main())

"""``python -m flamma``."""

import sys

from flamma.cli import main

sys.exit(main())

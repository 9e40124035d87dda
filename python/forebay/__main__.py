"""``python -m forebay`` is the ``forebay`` command."""

import sys

from ._command import main

sys.exit(main())

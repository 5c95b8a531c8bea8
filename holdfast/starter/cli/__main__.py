"""`python -m holdfast.starter.cli`."""

import sys

from holdfast.starter.cli import main

sys.exit(main())

"""Lets `python -m dualmoco` and `torchrun -m dualmoco` run the command line."""

import sys

from dualmoco.cli.main import main

sys.exit(main())

"""``python -m replay_server.dashboard``: how a job starts its dashboard."""

import sys

from .main import main

sys.exit(main())

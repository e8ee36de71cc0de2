"""Programs that a benchmark runs in processes of their own, each by the interpreter that has what it needs."""

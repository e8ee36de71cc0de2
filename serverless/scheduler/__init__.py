"""MinionsRL's learned actor scheduler: what it sees and does, how it is rewarded, and how it learns from whole jobs."""

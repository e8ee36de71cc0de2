"""RLlib with this project's actor functions in place of its rollout workers (Nitro, section 8.2.2)."""

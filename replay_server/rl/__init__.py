"""What actors and learners share: settings, networks, preprocessing, n-step windows, exploration, weights."""

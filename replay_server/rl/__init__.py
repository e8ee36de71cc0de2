"""What actors and learners share: settings, networks, preprocessing, exploration, weights."""

"""Jobs: whole training runs put together from server, actors, learner and evaluator."""
